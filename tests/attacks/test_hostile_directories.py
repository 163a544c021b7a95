"""Runs, traces, adapters, study files and paths that somebody else made: errors of ours, in bounded time."""

import json
import os
import resource
import signal
from pathlib import Path

import hostile_directories
import pytest
from typer.testing import CliRunner

import floatscope as fs
from floatscope import atomic, untrusted
from floatscope.cli import app
from floatscope.engine import Output, Run
from floatscope.engine.shards import Shards, encode
from floatscope.studies.findings import Findings
from floatscope.studies.request import read_request, request_of

# One reader of files


def test_a_small_json_object_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, {"b": NaN}]}')
    assert untrusted.read_object(tmp_path / "a.json")["a"][0] == 1
    with pytest.raises(FileNotFoundError):
        untrusted.read_object(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "holds a list: expected a JSON object"),
        (b"\xff", "is not UTF-8"),
        (b'{"a": ', "is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (b" " * 1001, "is larger than 0.001 MB"),
    ],
)
def test_json_that_cannot_be_used_is_refused(tmp_path, content, words):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(untrusted.Unreadable, match=words):
        untrusted.read_object(tmp_path / "a.json", 1000 if content[:2] == b"  " else 10**6)


@pytest.mark.parametrize("kind", ["fifo", "zeros", "folder", "itself"])
def test_what_is_no_regular_file_is_not_read(tmp_path, kind):
    path = tmp_path / "a.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "zeros" else path)
    with pytest.raises(untrusted.Unreadable, match="is not a regular file|cannot be read"):
        untrusted.read_object(path)


def test_a_file_with_a_field_given_twice_is_parsed_in_linear_time():
    """A search through all names before would take hours for this one."""
    raw = b"{" + b",".join(b'"%d":0' % i for i in range(200_000)) + b',"0":1}'
    assert untrusted.parse(raw).field == "0"


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x]\n"
        + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)),
        "a: &a [*a]",
        "[" * 5000,
        "1: 2",
        "- a",
        "!!python/object/apply:os.getcwd []",
    ],
)
def test_a_study_file_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(fs.UsageError):
        request_of(read_request(tmp_path / "s.yaml"))


# Runs


@pytest.fixture
def run(tmp_path):
    """A copy of a small run, and a function that writes a change into its run.json."""
    hostile_directories.shutil.copytree(hostile_directories._valid() / "run", tmp_path / "run")

    def change(**fields):
        file = tmp_path / "run" / "run.json"
        said = json.loads(file.read_text())
        said["request"] |= fields
        file.write_text(json.dumps(said))
        return tmp_path / "run"

    return change


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 10**9},
        {"questions": 10**9, "shard": 1},
        {"limit": 10**30},
        {"controls": 10**9},
        {"extra_runs": [{"limit": 10**9}]},
        {"extra_runs": [{}] * 1000},
        {"models": ["pair/mdm"] * 10**5},
        {"models": 3},
        {"threads": 10**9},
    ],
)
def test_a_request_for_more_than_the_run_holds_is_refused_without_making_it(run, fields):
    with pytest.raises(fs.FloatscopeError):
        Findings(run(**fields))


@pytest.mark.parametrize("name", ["run.json", "manifest.json", "shards/ask-0-000-00000.shard"])
@pytest.mark.parametrize("to", ["/dev/zero", None])
def test_a_device_or_fifo_in_a_run_is_refused(run, name, to):
    file = run() / name
    file.unlink()
    file.symlink_to(to) if to else os.mkfifo(file)
    with pytest.raises(fs.RunError):
        Findings(file.parents[name.count("/")]).answers("closed-book", "tiny")


@pytest.fixture
def changed(tmp_path):
    """Read a shard of one dataset, x, with one variable, y, of which the header or a frame was changed."""

    def read(change):
        shards = Shards(tmp_path)
        shards.write("a", encode("a", "key", Output({"x": hostile_directories.zeros(4)})))
        header, frames = hostile_directories.taken_apart(shards.path("a").read_bytes())
        declared = change(header, frames)
        shards.path("a").write_bytes(hostile_directories.put_together(header, frames, declared))
        info = hostile_directories.digest_of(shards.path("a"))
        return shards.read("a", digest=info["sha256"])

    assert read(lambda header, frames: None).data["x"]["y"].values.tolist() == [0.0] * 4
    return read


@pytest.mark.parametrize("name", ["x", "more"])
def test_a_shard_that_unpacks_to_far_more_than_its_size_is_refused(changed, monkeypatch, name):
    monkeypatch.setattr(untrusted, "FREE", 1 << 20)  # a bomb of gigabytes would take long to pack

    def bomb(header, frames):
        frames[name] = hostile_directories.zstd(bytes(8 << 20))
        header["data"][name] = [len(frames[name]), 8 << 20]

    with pytest.raises(fs.RunError, match="declares arrays of 8.* MB in files of 0.00"):
        changed(bomb)


def test_a_header_that_unpacks_to_more_than_a_header_may_have_is_refused(changed):
    with pytest.raises(fs.RunError, match="a header of more than 32 MB"):
        changed(lambda header, frames: 1 << 40)


def describing(**fields):
    """Change how the variable is described, and nothing else."""

    def change(header, frames):
        described, arrays = hostile_directories.opened(header, frames, "x")
        described["variables"]["y"] |= fields
        hostile_directories.close(header, frames, "x", described, arrays)

    return change


@pytest.mark.parametrize(
    ("kind", "shape", "why"),
    [
        *(("<f8", shape, "cannot be read") for shape in ([5], [3], [2, 3], [], [0])),
        *(("<f8", shape, "contains an array of shape") for shape in ([-4], [4.0], [True, 4])),
        *((kind, [4], "contains an array of shape") for kind in ("|O", "|V8", "<U0", "f8")),
        ("f4,O", [4], "contains an array of shape"),
        ("nonsense", [4], "cannot be read"),
        ("<f8", "4", "has shape = '4', expected a list"),
        *(("<f8", shape, "cannot be read") for shape in ([10**12], [2**62, 4], [0, 10**30])),
    ],
)
def test_an_array_of_another_size_than_its_bytes_is_refused_before_it_is_made(
    changed, kind, shape, why
):
    with pytest.raises(fs.RunError, match=why):
        changed(describing(dtype=kind, shape=shape))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("dims", value) for value in ([], ["n", "n"], "nn", [["n"]], None, 1)),
        *(("attrs", value) for value in ([1], "text", 1)),
        *(("coordinate", value) for value in ([], "no", None)),
    ],
)
def test_a_variable_that_is_described_wrongly_is_refused(changed, field, value):
    with pytest.raises(fs.RunError, match="cannot be read"):
        changed(describing(**{field: value}))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("length", [-1, 0, 10**15, "9", None])
def test_a_frame_of_another_length_than_declared_is_refused(changed, place, length):
    def other(header, frames):
        header["data"]["x"][place] = length

    with pytest.raises(fs.RunError, match="cannot be read"):
        changed(other)


def test_a_dataset_that_declares_more_than_its_file_can_hold_is_refused(changed):
    def other(header, frames):
        header["data"]["x"][1] = 8 * 10**12

    with pytest.raises(fs.RunError, match="declares arrays of 8,000,000 MB"):
        changed(other)


@pytest.mark.parametrize("length", [2**63, 10**6, 0])
def test_a_description_of_another_length_than_its_dataset_is_refused(changed, length):
    def other(header, frames):
        content = length.to_bytes(8, "little") + bytes(80)
        frames["x"] = hostile_directories.zstd(content)
        header["data"]["x"] = [len(frames["x"]), len(content)]

    with pytest.raises(fs.RunError, match="cannot be read"):
        changed(other)


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", ["<b>"]), ("vocabulary", [1]), ("share", {"code": 1}), ("more", 1), ("rows", [])],
)
def test_a_scene_that_is_none_names_its_shard_and_field(run, field, value):
    """Its checksums are right: whoever wrote it made them."""
    folder = run()
    shard = next(folder.glob("shards/trace-*.shard"))
    header, frames = hostile_directories.taken_apart(shard.read_bytes())
    header["meta"]["examples"][0]["scenes"]["page"][field] = value
    shard.write_bytes(hostile_directories.put_together(header, frames))
    hostile_directories._sealed(folder)
    with pytest.raises(fs.RunError, match=rf"{shard.name} .*examples.0.scenes.page.{field}"):
        Findings(folder).shown()


def test_a_manifest_that_names_files_elsewhere_does_not_count(run):
    file = run() / "manifest.json"
    said = json.loads(file.read_text())
    said["result"]["shards"][0]["shard"] = "../../../etc/passwd"
    file.write_text(json.dumps(said))
    assert Run(file.parent).manifest() is None


# Paths on the command line


@pytest.mark.parametrize(
    "command",
    ["study --model pair/mdm", "trace --model pair/mdm --prompt a", "report {run} --tables csv"],
)
@pytest.mark.parametrize(
    ("out", "words"),
    [("", "--out is empty"), ("x" * 251, "251 bytes"), ("abcdefghi/" * 420, "too long")],
)
def test_an_output_path_that_cannot_be_is_refused_first(run, command, out, words):
    done = CliRunner().invoke(app, [*command.format(run=run()).split(), "--out", out])
    assert done.exit_code == 2 or isinstance(done.exception, fs.FloatscopeError)
    assert words in str(done.exception)


def test_trace_learns_before_decoding_that_it_cannot_write(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("floatscope.instrument.load", lambda *_, **__: pytest.fail("it was loaded"))
    out = ["--out", str(tmp_path / "file" / "t.zarr")]
    done = CliRunner().invoke(app, ["trace", "--model", "pair/mdm", "--prompt", "a", *out])
    assert isinstance(done.exception, fs.TraceError)
    assert "t.zarr could not be written" in str(done.exception)


def test_report_into_what_is_no_directory_is_an_error_of_ours(run, tmp_path):
    (tmp_path / "file").touch()
    out = ["--tables", "csv", "--out", str(tmp_path / "file")]
    done = CliRunner().invoke(app, ["report", str(run()), *out])
    assert isinstance(done.exception, fs.RunError) and "file could not be written" in str(
        done.exception
    )


def test_records_of_a_file_whose_name_is_no_utf8_can_be_stored(tmp_path):
    from floatscope.tasks import read_records

    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
    path.write_text('{"question": "Who?", "answers": ["Me"]}\n')
    (record,) = read_records(path).records
    assert record.id == r"caf\udce9:1"
    atomic.write(tmp_path / "out", record.id.encode())


# From a seed


def test_hostile_directories_from_seeds():
    """Anything but a result or one of our own errors is an AssertionError of `attempt`."""
    counts, failures = hostile_directories.main(count=20)
    assert not failures, failures
    assert {outcome for _, outcome in counts} >= {"works", "exit 2", "exit 6"}


def test_an_attempt_notices_a_traceback_a_hang_memory_and_a_crash():
    def spin():
        while True:
            pass

    def fill():
        return b"x" * (before + (96 << 20))

    forked = hostile_directories._forked
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert forked(lambda: {}["x"])[0] == "traceback"
    assert forked(spin, limit=1)[0] == "hung"
    assert forked(fill, memory=32 << 20)[0] == "memory"
    assert forked(lambda: os.kill(os.getpid(), signal.SIGKILL))[0] == "died"
    assert forked(lambda: None) == ("works", "")
