"""The run engine: the same bytes whatever happens, nothing done twice, nothing lost."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import toy_worker
import xarray as xr
from waiting import LIMIT, until

import floatscope as fs
from floatscope import atomic, untrusted
from floatscope.engine import (
    Meter,
    Output,
    Plan,
    Run,
    Shard,
    execute,
    interrupt,
    local,
    ray_engine,
)
from floatscope.engine.hanging import HangTimer, Limits, ListeningClock
from floatscope.engine.ray_cluster import import_ray
from floatscope.engine.shards import Damaged, Shards, encode

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def counted(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_COUNTS", str(tmp_path / "counts"))
    return tmp_path / "counts"


def files(directory):
    """Everything that must not depend on how it came about."""
    found = {path.name: path.read_bytes() for path in (directory / "shards").iterdir()}
    manifest = json.loads((directory / "manifest.json").read_text())
    return {**found, "result": manifest["result"], "run": (directory / "run.json").read_bytes()}


def names_of(run):
    return [event["event"] for event in run.events()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Files of undisturbed runs, by plan."""
    folder, made = tmp_path_factory.mktemp("unbroken"), {}

    def of(plan):
        if plan.fingerprint not in made:
            execute(plan, folder / plan.fingerprint)
            made[plan.fingerprint] = files(folder / plan.fingerprint)
        return made[plan.fingerprint]

    return of


def test_a_run_stores_logs_and_lists_every_shard(tmp_path, counted):
    seen, events = [], []
    summary = execute(
        toy_worker.plan(3), tmp_path / "run", about={"numpy": "2"}, progress=seen.append,
        on_event=events.append,
    )  # fmt: skip
    assert (summary.shards, summary.reused, summary.computed, summary.redone) == (3, 0, 3, {})
    assert summary.left_out == [{"shard": "toy-001", "what": {"example": 7, "why": "too long"}}]
    run = Run(tmp_path / "run")
    assert run.read_request()["request"]["size"] == 2000 and run.read_request()["about"] == {
        "numpy": "2"
    }
    output = run.read("toy-002")
    expected = np.random.default_rng(2).normal(size=2000).astype(np.float32)
    numbers = output.data["numbers"]
    assert np.array_equal(numbers["values"], expected)
    assert np.array_equal(numbers["turned"], expected.reshape(-1, 10).T)
    assert numbers["turned"].dims == ("column", "row")
    assert output.data["texts"]["words"].values.tolist() == ["a", "<2>"]
    assert output.data["texts"].attrs == {"seed": 2}
    assert output.meta == {"seed": 2, "text": "ü \ud800 漢"}
    assert set(run.read("toy-002", ("texts",)).data) == {"texts"}
    assert names_of(run) == ["started", "stored", "stored", "stored", "finished"]
    assert [event["event"] for event in events] == names_of(run)
    assert [shard["shard"] for shard in run.manifest()["result"]["shards"]] == [
        f"toy-00{i}" for i in range(3)
    ]
    assert seen[0].completed == 0 and seen[-1].completed == seen[-1].total == 3
    assert seen[-1].seconds_left == 0 and seen[-1].rate > 0
    assert any(0 < fraction < 1 for state in seen for fraction in state.fractions.values())


def test_a_finished_run_is_left_as_it_is(tmp_path, counted):
    plan = toy_worker.plan(3)
    execute(plan, tmp_path / "run")
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (tmp_path / "run").rglob("*")
        if path.is_file() and path.name != "run.lock"
    }
    again = execute(plan, tmp_path / "run", workers=2)
    assert (again.reused, again.computed) == (3, 0)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    assert set(toy_worker.counts(counted).values()) == {1}


def test_the_engine_needs_neither_torch_nor_ray():
    code = "import sys, floatscope.engine; print({'torch', 'ray', 'xarray'} & set(sys.modules))"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True)
    assert found.stdout == "set()\n", found.stderr


# Killed -------------------------------------------------------------------------------------------


def started(directory, counted, shards, workers, *, held=(), **options):
    """A run in a process of its own that is about to begin; `held` shards are begun and never end."""
    gates = json.dumps({str(seed): "never" for seed in held})
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, HERE / "toy_worker.py", directory, str(shards), str(workers)],
        env={**os.environ, "TOY_COUNTS": str(counted), "TOY_GATES": gates, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("workers", [1, 2])
def test_resume_after_sigkill_in_any_shard_recomputes_only_unfinished_shards(
    tmp_path, monkeypatch, unbroken, workers
):
    """-9 as soon as a shard has begun, which one is drawn; the shards after it cannot end before."""
    plan, chance = toy_worker.plan(10), random.Random(20 + workers)
    whole = unbroken(plan)
    undisturbed = started(tmp_path / "whole", tmp_path / "c", 10, workers)
    assert undisturbed.communicate() == ("", "") and undisturbed.returncode == 0
    assert files(tmp_path / "whole") == whole
    for number, last in enumerate(chance.sample(range(10), 5)):
        directory, counted = tmp_path / f"{number}", tmp_path / f"c{number}"
        process = started(directory, counted, 10, workers, held=range(last, 10))
        until(
            (counted / str(last)).exists, f"shard {last}", alive=lambda p=process: p.poll() is None
        )
        process.kill()
        process.communicate()
        finished = set(Run(directory).survey(plan)[0])
        # A worker is given its next shard when its last one is stored.
        assert last - workers < len(finished) <= last, "the kill met a run at work"
        before = toy_worker.counts(counted)
        monkeypatch.setenv("TOY_COUNTS", str(counted))
        summary = execute(plan, directory, workers=2 if number == 4 else 1)
        assert summary.reused == len(finished) and summary.computed == 10 - len(finished)
        after = toy_worker.counts(counted)
        assert len(after) == 10, "nothing lost"
        assert all(before[shard] == after[shard] == 1 for shard in finished), "nothing done twice"
        assert all(count <= 2 for count in after.values())
        assert files(directory) == whole


def test_resume_after_a_kill_at_any_write_gives_identical_results(tmp_path, monkeypatch, unbroken):
    """Before each sync: of a file (half-written) and of a folder (the file just renamed)."""
    plan = toy_worker.plan(3)
    for number in range(100):
        directory, folder = tmp_path / f"{number}", tmp_path / f"c{number}"
        monkeypatch.setenv("TOY_COUNTS", str(folder))
        child = os.fork()
        if not child:
            left, right = number, os.fsync

            def fatal(handle, right=right):
                nonlocal left
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                right(handle)

            os.fsync = fatal
            try:
                execute(plan, directory)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        finished, before = set(Run(directory).survey(plan)[0]), toy_worker.counts(folder)
        summary = execute(plan, directory)
        after = toy_worker.counts(folder)
        assert summary.reused == len(finished)
        assert all(before[shard] == after[shard] == 1 for shard in finished)
        assert files(directory) == unbroken(plan)
        assert not list(directory.rglob("*.partial"))
        assert status in (0, signal.SIGKILL)
        if status == 0:
            break
    assert number == 2 * (1 + 2 * 3 + 1), "run.json, three shards and sidecars, the manifest"


def test_a_truncated_log_line_is_skipped(tmp_path):
    execute(toy_worker.plan(2), tmp_path / "run")
    run = Run(tmp_path / "run")
    with run.log.open("a") as log:
        log.write('{"time": "20')
    run.shards.path("toy-000").unlink()
    execute(toy_worker.plan(2), tmp_path / "run")
    assert names_of(run)[-4:] == ["started", "redo", "stored", "finished"]


# Damaged ------------------------------------------------------------------------------------------


def cut(shards, shard):
    path = shards.path(shard)
    os.truncate(path, path.stat().st_size // 2)


def flip(shards, shard):
    path = shards.path(shard)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_sidecar(shards, shard):
    path = shards.sidecar(shard)
    path.write_text(path.read_text().replace('"left_out": [', '"left_out": ["x",'))


DAMAGE = {
    "instead of": cut,
    "has changed since": flip,
    "its sidecar is missing": lambda shards, shard: shards.sidecar(shard).unlink(),
    "its file is missing": lambda shards, shard: shards.path(shard).unlink(),
    "sidecar cannot be read": lambda shards, shard: cut(_SidecarAsFile(shards), shard),
    "disagree": flip_sidecar,
    "another request": lambda shards, shard: shards.write(
        shard, encode(shard, "0" * 64, Output({}, {}))
    ),
    "another shard": lambda shards, shard: (
        shards.path(shard).write_bytes(shards.path("toy-000").read_bytes()),
        shards.sidecar(shard).write_bytes(shards.sidecar("toy-000").read_bytes()),
    ),
    "not a shard": lambda shards, shard: (
        shards.path(shard).write_bytes(b"text"),
        shards.sidecar(shard).write_text(
            json.dumps(
                {
                    "bytes": 4,
                    "sha256": "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1",
                }
            )
        ),
    ),
}


class _SidecarAsFile:
    def __init__(self, shards):
        self.path = shards.sidecar


@pytest.mark.parametrize("why", DAMAGE)
def test_damaged_shards_are_detected_recomputed_and_logged(tmp_path, counted, unbroken, why):
    plan, directory = toy_worker.plan(3), tmp_path / "run"
    execute(plan, directory)
    DAMAGE[why](Shards(directory / "shards"), "toy-001")
    summary = execute(plan, directory)
    assert list(summary.redone) == ["toy-001"] and why in summary.redone["toy-001"]
    assert (summary.reused, summary.computed) == (2, 1)
    assert toy_worker.counts(counted) == {"toy-000": 1, "toy-001": 2, "toy-002": 1}
    assert files(directory) == unbroken(plan)
    run = Run(directory)
    assert "redo" in names_of(run)
    assert run.manifest()["history"]["redone"] == [
        {"shard": "toy-001", "why": summary.redone["toy-001"]}
    ]


def test_any_flipped_byte_is_detected(tmp_path):
    """By the checksum, each; and a reader meets an error or, where it was padding, the data."""
    shards, values = Shards(tmp_path), np.random.default_rng(0).normal(size=50)
    shards.write(
        "a", encode("a", "key", Output({"x": xr.Dataset({"values": ("n", values)})}, {"x": 1}))
    )
    data, unread = shards.path("a").read_bytes(), 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        shards.path("a").write_bytes(flipped)
        with pytest.raises(Damaged, match="has changed"):
            shards.verify("a", "key")
        try:
            output = shards.read("a")
        except fs.RunError:
            unread += 1
        else:
            assert np.array_equal(output.data["x"]["values"], values) and output.meta == {"x": 1}
    assert unread > len(data) / 2
    shards.path("a").write_bytes(data[:-9])
    with pytest.raises(fs.RunError, match=r"a\.shard cannot be read: .*--resume"):
        shards.read("a")


# Refused ------------------------------------------------------------------------------------------


def test_a_directory_in_use_is_refused(tmp_path):
    plan = toy_worker.plan(2)
    with Run(tmp_path).claim(plan, resume=True, overwrite=False, about={}):
        with pytest.raises(
            fs.RunError, match=rf"in use by process {os.getpid()} on .*another --out"
        ):
            execute(plan, tmp_path)
    assert execute(plan, tmp_path).computed == 2


def test_another_request_in_the_same_directory_is_refused(tmp_path):
    tmp_path = tmp_path / "run"
    execute(toy_worker.plan(2), tmp_path)
    before = files(tmp_path)
    other = toy_worker.plan(3, size=3000, extra=[1])
    with pytest.raises(fs.RunError) as refused:
        execute(other, tmp_path)
    assert "run.request.extra is missing there" in str(refused.value)
    assert "run.request.size is 2000 there, 3000 now" in str(refused.value)
    assert "run.shards is 2 there, 3 now" in str(refused.value)
    assert "another --out" in refused.value.remedy and refused.value.exit_code == 6
    with pytest.raises(fs.RunError, match="already contains a run"):
        execute(toy_worker.plan(2), tmp_path, resume=False)
    assert files(tmp_path) == before
    assert execute(other, tmp_path, overwrite=True).computed == 3
    assert len(files(tmp_path)) == 8 and names_of(Run(tmp_path))[0] == "started"


def test_shards_of_another_spec_in_the_same_directory_are_refused(tmp_path):
    plan = toy_worker.plan(2)
    execute(plan, tmp_path)
    with pytest.raises(fs.RunError, match="specs of the shards differ"):
        execute(Plan(plan.request, plan.worker, (Shard("x", {}), Shard("y", {}))), tmp_path)


def test_a_changed_version_is_logged(tmp_path):
    execute(toy_worker.plan(2), tmp_path, about={"torch": "1"})
    execute(toy_worker.plan(2), tmp_path, about={"torch": "2"})
    assert [e["what"] for e in Run(tmp_path).events() if e["event"] == "changed"] == [
        ['about.torch is "1" there, "2" now']
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}'])
def test_an_unreadable_run_json_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(fs.RunError, match=r"run\.json .*another --out"):
        execute(toy_worker.plan(2), tmp_path)


def test_invalid_plans_are_refused():
    for name in ("", "a/b", "../a", ".a", "a b", "x" * 121):
        with pytest.raises(fs.UsageError, match="is no valid name of a shard"):
            Shard(name, {})
    with pytest.raises(fs.UsageError, match="two shards are called A"):
        Plan({}, "toy_worker:make", (Shard("a", {}), Shard("A", {})))
    with pytest.raises(fs.UsageError, match="the request cannot be written as JSON"):
        Plan({"x": float("nan")}, "toy_worker:make", ())
    with pytest.raises(fs.UsageError, match="Python objects"):
        encode("a", "k", Output({"x": xr.Dataset({"x": ("n", np.array([None]))})}))
    with pytest.raises(fs.UsageError, match="the attributes of dataset .x. in shard a cannot be"):
        encode("a", "k", Output({"x": xr.Dataset(attrs={"y": float("nan")})}))


def test_invalid_options_are_refused(tmp_path):
    for options in ({"workers": 0}, {"engine": "slurm"}, {"address": "auto"}, {"gpus": 1}):
        with pytest.raises(fs.UsageError):
            execute(toy_worker.plan(1), tmp_path, **options)
    with pytest.raises(fs.UsageError, match="no worker 'toy_worker:nothing'"):
        execute(Plan({}, "toy_worker:nothing", (Shard("a", {}),)), tmp_path)


# Full ---------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_run_and_keeps_stored_shards(tmp_path, counted, unbroken):
    """A real limit on file size, set by the kernel, stops the write of the third shard."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    plan = toy_worker.plan(5)

    def fill(event):
        if event.get("shard") == "toy-001":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))

    try:
        with pytest.raises(fs.RunError, match=r"toy-002\.shard could not be written.*--resume"):
            execute(plan, tmp_path / "run", on_event=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run = Run(tmp_path / "run")
    assert names_of(run) == ["started", "stored", "stored", "stopped"]
    assert run.shards.ids() == {"toy-000", "toy-001"} and run.manifest() is None
    assert not list(run.directory.rglob("*.partial"))
    assert execute(plan, run.directory).reused == 2
    assert toy_worker.counts(counted) == {f"toy-00{i}": 2 if i == 2 else 1 for i in range(5)}
    assert files(run.directory) == unbroken(plan)


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    def full(path, line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(untrusted, "append", full)
    with pytest.raises(fs.RunError, match="log.jsonl could not be written: No space left"):
        execute(toy_worker.plan(2), tmp_path)


@pytest.mark.parametrize("kind", ["link", "fifo"])
@pytest.mark.parametrize("name", ["log.jsonl", "run.lock"])
def test_links_and_pipes_in_a_run_are_not_written_to(tmp_path, name, kind):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    file = tmp_path / "run" / name
    file.parent.mkdir()
    file.symlink_to(elsewhere) if kind == "link" else os.mkfifo(file)
    with pytest.raises(fs.RunError, match=f"{name} could not be written: it is"):
        execute(toy_worker.plan(2), file.parent)
    assert elsewhere.read_text() == "mine"


def test_a_partial_file_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / f".file.{os.getpid()}.partial").symlink_to(tmp_path / "elsewhere")
    atomic.write(tmp_path / "file", b"new")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    atomic.write(tmp_path / "file", b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(fs.RunError, match="file could not be written: No space left"):
        atomic.write(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_the_error_names_a_directory_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(fs.RunError, match="could not be written"):
        execute(toy_worker.plan(1), tmp_path / "file" / "run")


# Several workers ----------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_its_shard_redone(tmp_path, counted, unbroken):
    """The killed one's plan is compared with a run in one process, where the mishap is over."""
    plan = toy_worker.plan(6, mishap="die")
    execute(plan, tmp_path / "run", workers=2)
    assert toy_worker.counts(counted) == {f"toy-00{i}": 2 if i == 2 else 1 for i in range(6)}
    assert files(tmp_path / "run") == unbroken(plan)
    lost = Run(tmp_path / "run").manifest()["history"]["lost"]
    assert lost == [{"shard": "toy-002", "why": "its worker ended with exit code -9"}]


def test_a_shard_that_kills_its_workers_ends_the_run(tmp_path, counted):
    plan = toy_worker.plan(3, mishap="die always", at=0)
    with pytest.raises(fs.RunError, match="shard toy-000 was lost 4 times.*exit code -9"):
        execute(plan, tmp_path / "run", workers=2)
    assert toy_worker.counts(counted)["toy-000"] == 4
    assert Run(tmp_path / "run").manifest() is None


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_refusal_shards_in_flight_are_stored_and_none_is_started(
    tmp_path, counted, monkeypatch, workers
):
    """Of two workers one refuses shard 2 when the other has begun 3, which ends after the refusal."""
    plan = toy_worker.plan(6, mishap="refuse")
    if workers == 2:
        monkeypatch.setenv("TOY_GATES", json.dumps({"2": "3", "3": "refused"}))

    def open_gate(event):
        if event["event"] == "failed":
            (counted / "refused").touch()

    with pytest.raises(fs.ModelError, match="shard toy-002: a weight is NaN. Download it again"):
        execute(plan, tmp_path / "run", workers=workers, on_event=open_gate)
    run = Run(tmp_path / "run")
    stored = set(run.survey(plan)[0])
    assert stored == {"toy-000", "toy-001", *(["toy-003"] if workers == 2 else [])}
    assert names_of(run).count("stored") == len(stored) and run.manifest() is None
    assert execute(plan, tmp_path / "run").reused == len(stored)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bug_in_a_worker_is_logged_with_its_traceback(tmp_path, workers):
    plan = toy_worker.plan(3, mishap="crash")
    with pytest.raises(fs.RunError, match="toy-002 failed: ZeroDivisionError: one by .*log.jsonl"):
        execute(plan, tmp_path, workers=workers)
    (failed,) = [event for event in Run(tmp_path).events() if event["event"] == "failed"]
    assert "in befall" in failed["traceback"] and failed["shard"] == "toy-002"


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_leaves_complete_shards_and_names_resume(tmp_path, counted, unbroken, workers):
    """Ctrl-C reaches every process of a terminal: so does this."""
    directory, plan = tmp_path / "run", toy_worker.plan(8)
    process = started(directory, counted, 8, workers, held=range(1, 8), start_new_session=True)
    first = directory / "shards" / "toy-000.json"
    until(first.exists, "the first shard", alive=lambda: process.poll() is None)
    os.killpg(process.pid, signal.SIGINT)
    _, complaint = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "1 of 8 shards are stored in" in complaint and "--resume" in complaint
    assert "Traceback" not in complaint
    run = Run(directory)
    assert names_of(run)[-1] == "interrupted" and not list(directory.rglob("*.partial"))
    summary = execute(plan, directory)
    assert summary.reused == 1 and summary.redone == {}
    assert files(directory) == unbroken(plan)


def test_an_interrupt_while_a_shard_is_stored_keeps_the_shard(tmp_path, monkeypatch):
    """It was computed, so it is kept."""
    right, calls = atomic.write_json, []

    def interrupted(path, value):
        calls.append(path.name)
        if calls.count("toy-001.json") == 1 and path.name == "toy-001.json":
            os.kill(os.getpid(), signal.SIGINT)
        right(path, value)

    monkeypatch.setattr(atomic, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped: 2 of 3 shards are stored in .*--resume"):
        execute(toy_worker.plan(3), tmp_path)
    summary = execute(toy_worker.plan(3), tmp_path)
    assert (summary.reused, summary.computed, summary.redone) == (2, 1, {})


def test_an_interrupt_while_the_handler_is_replaced_is_not_reported():
    """Python calls it an error; any other error is still told."""
    told = []
    report = interrupt._ignore_race(told.append)
    race, other = (
        SimpleNamespace(exc_value=OSError(text))
        for text in ("Signal 2 ignored due to race condition", "disk full")
    )
    report(race)
    report(other)
    assert told == [other]


def test_two_interrupts_at_once_end_the_run_like_one(tmp_path, counted):
    """And those after it, which come until the program has ended."""
    directory = tmp_path / "run"
    process = started(directory, counted, 4, 2, held=range(1, 4), start_new_session=True)
    first = directory / "shards" / "toy-000.json"
    until(first.exists, "the first shard", alive=lambda: process.poll() is None)
    for seed in "12":
        until((counted / seed).exists, f"shard {seed}", alive=lambda: process.poll() is None)
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    _, complaint = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "Traceback" not in complaint
    assert complaint.startswith("stopped: 1 of 4 shards are stored in")
    for pid in {int(pid) for seed in "012" for pid in (counted / seed).read_text().split()}:
        until(lambda pid=pid: not running(pid), f"worker {pid} has ended")
    assert execute(toy_worker.plan(4), directory).reused == 1, "the lock is free"


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Hung ---------------------------------------------------------------------------------------------

SHORT = 2.0  # seconds of patience, by a clock that the tests control


class HangClock:
    """A clock for the driver that goes only while a worker hangs and no other worker is at work.

    Every reading adds a second. A healthy worker is never watched while it goes, so no worker is lost
    because the machine is busy.
    """

    def __init__(self, run, marks, others):
        self.run, self.marks, self.others, self.now = run, marks, others, 0.0

    def __call__(self):
        if self.hangs() and len(list(self.run.glob("shards/*.json"))) == self.others:
            self.now += 1.0
        return self.now

    def hangs(self):
        hung = [mark.read_text() for mark in self.marks.glob("happened: *")]
        return any(pid and running(pid) for pid in hung)


@pytest.fixture
def hang_clock(tmp_path, monkeypatch, counted):
    """Give the driver of `tmp_path / "run"` a HangClock that waits for so many other shards."""

    def install(others, marks=counted):
        listening = partial(ListeningClock, clock=HangClock(tmp_path / "run", marks, others))
        for engine in (local, ray_engine):
            monkeypatch.setattr(engine, "ListeningClock", listening)

    return install


@pytest.mark.parametrize("mishap", ["stop", "hold", "send half"])
def test_a_worker_that_hangs_is_replaced_and_its_shard_redone(
    tmp_path, counted, unbroken, hang_clock, mishap
):
    """It is stopped; or one call of C holds the interpreter; or it is stopped halfway in a message."""
    hang_clock(others=5)
    plan = toy_worker.plan(6, mishap=mishap)
    execute(plan, tmp_path / "run", workers=2, patience=SHORT)
    assert files(tmp_path / "run") == unbroken(plan)
    lost = Run(tmp_path / "run").manifest()["history"]["lost"]
    why = "its worker hung: no sign of life for 2 s (patience of --engine)"
    assert lost == [{"shard": "toy-002", "why": why}]
    stopped, *_ = (counted / "2").read_text().split()
    assert not running(stopped)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_over_its_time_limit_is_given_to_another_worker(
    tmp_path, unbroken, hang_clock, workers
):
    """Signs of life still come. With a limit, one worker too has a process of its own."""
    hang_clock(others=3)
    plan = toy_worker.plan(4, mishap="forget", at=3)
    execute(plan, tmp_path / "run", workers=workers, shard_limit=SHORT)
    assert files(tmp_path / "run") == unbroken(plan)
    lost = Run(tmp_path / "run").manifest()["history"]["lost"]
    why = "its worker took more than 2 s for it (shard_limit of --engine)"
    assert lost == [{"shard": "toy-003", "why": why}]


def test_a_shard_that_always_hangs_ends_the_run(tmp_path, hang_clock):
    hang_clock(others=0)
    plan = toy_worker.plan(1, mishap="forget always", at=0)
    with pytest.raises(fs.RunError, match=r"lost 4 times: its worker took .*patience.*--resume"):
        execute(plan, tmp_path / "run", shard_limit=SHORT / 10)


def test_hang_timers_count_only_time_in_which_the_driver_listened():
    limits, now = Limits(patience=60.0, shard=600.0), 0.0
    clock, timer = ListeningClock(limits, clock=lambda: now), HangTimer(limits)
    timer.assign()
    for _ in range(22):
        now += 5
        assert timer.advance(clock.elapsed()) is None, "a new process has two minutes"
    timer.begin()
    now += 3600  # it was itself stopped
    assert timer.advance(clock.elapsed()) is None
    for _ in range(10):
        now += 5
        assert timer.advance(clock.elapsed()) is None
    now += 5
    assert "no sign of life for 60 s" in timer.advance(clock.elapsed())
    for _ in range(107):
        timer.heartbeat()
        now += 5
        assert timer.advance(clock.elapsed()) is None
    timer.heartbeat()
    now += 5
    assert "more than 600 s" in timer.advance(clock.elapsed())


# Ray ----------------------------------------------------------------------------------------------


def test_ray_with_two_workers_one_killed(tmp_path, counted, unbroken):
    plan, seen = toy_worker.plan(6, mishap="die"), []
    execute(plan, tmp_path / "run", engine="ray", workers=2, progress=seen.append)
    assert toy_worker.counts(counted) == {f"toy-00{i}": 2 if i == 2 else 1 for i in range(6)}
    assert files(tmp_path / "run") == unbroken(plan)
    (lost,) = Run(tmp_path / "run").manifest()["history"]["lost"]
    assert lost["shard"] == "toy-002" and "its Ray worker ended (ActorDied" in lost["why"]
    assert seen[-1].completed == 6


def test_without_ray_there_is_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(fs.RunError, match=r"pip install 'floatscope\[ray\]'"):
        execute(toy_worker.plan(1), tmp_path, engine="ray")
    assert ray_engine.RayWorkers(1).gpus == 0


def test_a_ray_address_where_nobody_answers_is_named(tmp_path):
    with pytest.raises(fs.RunError, match=r"no Ray cluster at 127\.0\.0\.1:1: .*refused.*address"):
        execute(toy_worker.plan(1), tmp_path, engine="ray", address="127.0.0.1:1")
    assert execute(toy_worker.plan(1), tmp_path).computed == 1


# Progress -----------------------------------------------------------------------------------------


def test_the_rate_counts_only_this_run():
    now = 100.0
    meter = Meter(total=12, already=6, clock=lambda: now)
    assert meter.state() == (6, 12, {}, None, None)
    now = 150.0  # a model was loaded
    meter.begin("a")
    now = 155.0
    meter.tick("a", 1, 2)
    assert meter.state() == (6, 12, {"a": 0.5}, 0.1, 55.0)
    now = 160.0
    meter.finish("a")
    assert meter.state() == (7, 12, {}, 0.1, 50.0)
    meter.begin("b")
    meter.lose("b")
    assert meter.state().fractions == {}


# Ray, one cluster for several tests: nothing that starts its own comes after this --------------------


@pytest.fixture(scope="module")
def machines():
    """One Ray for the tests from here on, of which each machine is a set of processes here."""
    import_ray()
    from ray.cluster_utils import Cluster

    yield (machines := Cluster())
    machines.shutdown()


@pytest.fixture(scope="module")
def cluster(machines, tmp_path_factory):
    """Its workers count where this says, as it was started; the shards from 70 on wait for `lost`."""
    folder = tmp_path_factory.mktemp("ray")
    gates = {str(seed): "lost" for seed in (70, 71)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_COUNTS", str(folder))
        patch.setenv("TOY_GATES", json.dumps(gates))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))
        machines.add_node(num_cpus=4, num_gpus=3, include_dashboard=False)
    ray = import_ray()
    ray.init(address=machines.address, log_to_driver=False, configure_logging=False)
    yield folder
    ray.shutdown()


def test_ray_gives_each_worker_a_gpu_of_its_own(tmp_path, cluster):
    """The GPUs are a count of Ray's alone: what is tested is who gets which."""
    shards = tuple(Shard(f"s{i}", {}) for i in range(6))
    plan = Plan({"workers": 3}, "toy_worker:placed", shards)
    execute(plan, tmp_path / "run", engine="ray", workers=3, gpus=None)
    said = [Run(tmp_path / "run").read(shard.id).meta for shard in shards]
    by_worker = {one["pid"]: one["gpus"] for one in said}
    assert sorted(by_worker.values()) == ["0", "1", "2"]
    assert all(by_worker[one["pid"]] == one["gpus"] for one in said)


def test_ray_workers_do_not_wait_until_a_shard_is_stored(tmp_path, cluster):
    seen = []

    def next_has_begun(event):
        if event["event"] == "stored" and event["shard"] == "toy-000":
            until((cluster / "1").exists, "the next shard is begun")
            seen.append(sorted(toy_worker.counts(cluster)))

    plan = toy_worker.plan(3)
    execute(plan, tmp_path / "run", engine="ray", workers=1, on_event=next_has_begun)
    assert "toy-001" in seen[0]


def test_ray_replaces_a_worker_that_is_stopped(
    tmp_path, cluster, hang_clock, monkeypatch, unbroken
):
    hang_clock(others=2, marks=cluster)
    plan = toy_worker.plan(3, mishap="stop", at=11, first=10)
    execute(plan, tmp_path / "run", engine="ray", workers=2, patience=SHORT)
    monkeypatch.setenv("TOY_COUNTS", str(cluster))  # where the mishap is over
    assert files(tmp_path / "run") == unbroken(plan)
    lost = Run(tmp_path / "run").manifest()["history"]["lost"]
    why = "its worker hung: no sign of life for 2 s (patience of --engine)"
    assert lost == [{"shard": "toy-011", "why": why}]
    stopped, *_ = (cluster / "11").read_text().split()
    until(lambda: not running(stopped), "Ray has ended it")


def test_ray_continues_after_a_machine_dies(tmp_path, machines, cluster, monkeypatch, unbroken):
    """Two GPUs a worker, so one on each machine: both have begun when one machine is gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_COUNTS", str(cluster))
        patch.setenv("TOY_GATES", json.dumps({"70": "lost", "71": "lost"}))
        second = [machines.add_node(num_cpus=1, num_gpus=2)]
    plan = toy_worker.plan(4, first=70)

    def pull_the_plug(progress):
        if second and {"toy-070", "toy-071"} <= progress.fractions.keys():
            machines.remove_node(second.pop(), allow_graceful=False)

    def open_gate(event):
        if event["event"] == "lost":
            (cluster / "lost").touch()

    execute(
        plan, tmp_path / "run", engine="ray", workers=2, gpus=2, progress=pull_the_plug,
        on_event=open_gate,
    )  # fmt: skip
    assert files(tmp_path / "run") == unbroken(plan)
    (lost,) = Run(tmp_path / "run").manifest()["history"]["lost"]
    assert lost["shard"] in ("toy-070", "toy-071") and "its Ray worker ended" in lost["why"]


HEADLESS = """
import sys
from pathlib import Path
from types import SimpleNamespace

import toy_worker
from floatscope import RunError
from floatscope.engine import execute, ray_cluster, ray_engine

directory, address, killed = sys.argv[1:]
now, begun = 0.0, []


class Cluster(ray_cluster.Cluster):
    def check(self):
        # While the head is alive the clock waits for its answer to the last question.
        global now
        if Path(killed).exists() or self._answered >= self._queried:
            now += 6.0
        super().check()


ray_cluster.time = SimpleNamespace(monotonic=lambda: now)
ray_engine.Cluster = Cluster


def tell(progress):
    if "toy-080" in progress.fractions and not begun:
        begun.append(print("begun", flush=True))


plan = toy_worker.plan(2, mishap="forget", at=80, first=80)
try:
    execute(plan, directory, engine="ray", address=address, workers=1, progress=tell)
except RunError as error:
    print(error)
"""


def test_a_lost_cluster_ends_the_run_and_names_resume(tmp_path, machines, cluster):
    """The last test of this Ray: its head is killed while a shard is in hand. Sooner or later Ray ends every
    process that was connected, so that is another one."""
    import_ray().shutdown()
    process = subprocess.Popen(
        [sys.executable, "-c", HEADLESS, tmp_path / "run", machines.address, tmp_path / "killed"],
        cwd=HERE,  # where the program finds the toy; Ray's workers find it by their environment
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Ray may speak first, of a machine that an earlier test took away.
    assert "begun\n" in iter(process.stdout.readline, ""), process.stderr.read()
    machines.head_node.kill_gcs_server(check_alive=False)
    (tmp_path / "killed").touch()
    said, errors = process.communicate(timeout=LIMIT)
    assert "Ray cluster is lost: its head no longer answers" in said, errors
    assert "--resume" in said
    assert names_of(Run(tmp_path / "run"))[-1] == "stopped"
