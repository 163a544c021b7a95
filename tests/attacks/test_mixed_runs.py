"""A run is computed from one model and one data set, and read as it was stored."""

import json
import shutil
from dataclasses import replace

import pytest
import toy_worker
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import floatscope as fs
from floatscope.cli import app
from floatscope.engine import Run, execute
from floatscope.engine.shards import Shards, encode
from floatscope.models import tiny
from floatscope.studies import Findings, request_of
from floatscope.studies.run import run
from floatscope.studies.worker import make


@pytest.fixture(autouse=True)
def counted(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_COUNTS", str(tmp_path / "counts"))
    monkeypatch.setenv("TOY_WEIGHTS", "first")


def test_a_model_replaced_during_a_run_ends_it_and_nothing_of_it_is_stored(tmp_path, monkeypatch):
    def other_weights(event):
        if event.get("shard") == "toy-001":
            monkeypatch.setenv("TOY_WEIGHTS", "second")

    with pytest.raises(
        fs.RunError, match="model toy has changed since .* was started.*first.*second"
    ):
        execute(toy_worker.plan(5), tmp_path / "run", on_event=other_weights)
    there = Run(tmp_path / "run")
    assert there.shards.ids() == {"toy-000", "toy-001"}
    assert there.read_request()["sources"] == {"model toy": "first"}
    assert [event["shard"] for event in there.events() if event["event"] == "refused"] == [
        "toy-002"
    ]
    monkeypatch.setenv("TOY_WEIGHTS", "first")
    assert execute(toy_worker.plan(5), tmp_path / "run").reused == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_replaced_between_stop_and_resume_is_refused(tmp_path, monkeypatch, workers):
    plan = toy_worker.plan(4, mishap="refuse")
    with pytest.raises(fs.ModelError):
        execute(plan, tmp_path / "run", workers=workers)
    before = Run(tmp_path / "run").shards.ids()
    monkeypatch.setenv("TOY_WEIGHTS", "second")
    with pytest.raises(fs.RunError, match="model toy has changed since"):
        execute(plan, tmp_path / "run", workers=workers)
    assert Run(tmp_path / "run").shards.ids() == before


def test_known_sources_are_compared_before_any_shard_is_computed(tmp_path, monkeypatch):
    plan = toy_worker.plan(3, mishap="refuse")
    with pytest.raises(fs.ModelError):
        execute(plan, tmp_path / "run", sources={"data q.jsonl": "one"})
    with pytest.raises(fs.RunError, match="data q.jsonl has changed since"):
        execute(plan, tmp_path / "run", sources={"data q.jsonl": "two"})
    assert toy_worker.counts(tmp_path / "counts") == {f"toy-00{i}": 1 for i in range(3)}


def test_sources_survive_a_damaged_run_json(tmp_path, monkeypatch):
    plan = toy_worker.plan(3, mishap="refuse")
    with pytest.raises(fs.ModelError):
        execute(plan, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    monkeypatch.setenv("TOY_WEIGHTS", "second")
    with pytest.raises(fs.RunError, match="model toy has changed since"):
        execute(plan, tmp_path / "run")
    monkeypatch.setenv("TOY_WEIGHTS", "first")
    assert execute(plan, tmp_path / "run").reused == 2


def altered(path, change):
    """The same shard with other content, which is encoded as it should be."""
    shards = Shards(path.parent)
    output, info = shards.read(path.stem), json.loads(shards.sidecar(path.stem).read_text())
    name, variable = next(
        (name, variable)
        for name, data in output.data.items()
        for variable, array in data.data_vars.items()
        if array.dtype.kind == "f"
    )
    changed = output.data[name].assign({variable: change(output.data[name][variable])})
    data = output.data | {name: changed}
    path.write_bytes(encode(path.stem, info["key"], replace(output, data=data)))


@pytest.mark.parametrize("finished", [True, False])
def test_an_altered_shard_is_not_read(tmp_path, finished):
    execute(toy_worker.plan(2), tmp_path / "run")
    if not finished:
        (tmp_path / "run" / "manifest.json").unlink()
    there = Run(tmp_path / "run")
    there.read("toy-001")
    altered(there.shards.path("toy-001"), lambda array: array + 1)
    with pytest.raises(
        fs.RunError, match="toy-001.shard cannot be read: its file has changed since"
    ):
        there.read("toy-001", ())  # also by whoever has read it before
    there.read("toy-000")


def test_a_shard_with_a_forged_sidecar_is_not_what_the_manifest_lists(tmp_path):
    import hashlib

    execute(toy_worker.plan(2), tmp_path / "run")
    there = Run(tmp_path / "run")
    path, sidecar = there.shards.path("toy-001"), there.shards.sidecar("toy-001")
    altered(path, lambda array: array + 1)
    info = json.loads(sidecar.read_text())
    data = path.read_bytes()
    info |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    sidecar.write_text(json.dumps(info))
    with pytest.raises(fs.RunError, match="its file has changed since"):
        there.read("toy-001")


# Studies ------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    tiny.write("Llama", tmp_path / "model")
    rows = [
        {"question": f"Number {i}?", "answers": [f"w{i}"], "passages": ["No."]} for i in range(3)
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    fields = {"studies": ["floating"], "models": ["model"], "data": "q.jsonl", "limit": 2}
    return request_of({**fields, "length": 4, "controls": 0, "shard": 1, "view": 0})


def replace_weights():
    weights = {name: tensor * 1.01 for name, tensor in load_file("model/model.safetensors").items()}
    save_file(weights, "model/model.safetensors", metadata={"format": "pt"})


def replace_tokenizer():
    path = "model/tokenizer.json"
    with open(path) as file:
        text = json.load(file)
    text["normalizer"] = {"type": "Lowercase"}
    with open(path, "w") as file:
        json.dump(text, file)


def replace_data():
    with open("q.jsonl", "a") as file:
        file.write("\n")


@pytest.mark.parametrize("replace", [replace_weights, replace_tokenizer, replace_data])
def test_a_study_is_not_resumed_with_another_model_or_other_data(project, replace):
    class Stopped(Exception):
        pass

    def stop(event):
        if event["event"] == "stored":
            raise Stopped

    with pytest.raises(Stopped):
        run(project, "run", on_event=stop)
    replace()
    with pytest.raises(fs.RunError, match=r"(model|data q.jsonl) .*has changed since"):
        run(project, "run")
    assert len(list(Run("run").shards.ids())) == 1


@pytest.mark.parametrize("replace", [replace_weights, replace_tokenizer, replace_data])
def test_a_worker_refuses_changed_sources_before_it_computes(project, replace):
    from floatscope.studies.planning import plan

    run(project, "run")
    sources = Run("run").sources
    replace()
    with pytest.raises(fs.RunError, match="has changed since the run was started"):
        make(project.as_json(), {"sources": sources})(
            plan(project).shards[0].spec, lambda done, of: pytest.fail("it was computed")
        )


def test_a_report_of_an_altered_run_ends_with_an_error(project):
    run(project, "run")
    shard = next(iter(Findings("run").plan.shards))
    altered(Run("run").shards.path(shard.id), lambda array: array + 1)
    done = CliRunner().invoke(app, ["report", "run"])
    assert isinstance(done.exception, fs.RunError)
    assert "has changed since it was written" in str(done.exception)


# Plugins ------------------------------------------------------------------------------------------

EVIL = "open('ran', 'w').close()\n"


@pytest.mark.parametrize("place", ["flat", "nested", "run.json", "run.json, nested"])
@pytest.mark.parametrize("given", [False, True])
def test_a_plugin_that_only_a_file_names_is_not_imported(project, tmp_path, place, given):
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "mine.py").write_text("")
    fields = {"studies": ["floating"], "models": ["model"], "data": "q.jsonl", "limit": 2}
    fields |= {"length": 4, "controls": 0, "view": 0, "sampler": "confidence"}
    part = {"plugins": ["evil.py"], "sampler": "unheard-of"}
    fields |= {"extra_runs": [part]} if "nested" in place else part
    if "run.json" in place:
        run(project, "run")
        file = json.loads((tmp_path / "run" / "run.json").read_text())
        file["request"] |= fields
    else:
        file = fields
    (tmp_path / "config.json").write_text(json.dumps(file))
    plugin = ["--plugin", "mine.py"] if given else []
    done = CliRunner().invoke(app, ["study", "--config", "config.json", "--out", "again", *plugin])
    assert not (tmp_path / "ran").exists()
    message = str(done.exception) + done.output
    assert ("unheard-of" in message) if given else ("--plugin evil.py" in message)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


# What a review found ------------------------------------------------------------------------------


def test_a_link_instead_of_the_folder_of_replaced_runs_is_not_followed(tmp_path):
    precious = tmp_path / "victim" / "1-2"
    precious.mkdir(parents=True)
    (precious / "run.json").write_text("{}")
    (precious / "thesis.txt").write_text("years")
    (tmp_path / ".run.replaced").symlink_to(tmp_path / "victim")
    execute(toy_worker.plan(1), tmp_path / "run")
    assert (precious / "thesis.txt").exists()
    with pytest.raises(fs.RunError, match="cannot be moved aside"):
        execute(toy_worker.plan(1), tmp_path / "run", overwrite=True)


@pytest.mark.parametrize("name", ["shards", "results"])
def test_a_linked_folder_of_a_run_is_not_written_through(project, tmp_path, name):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".thesis.1.partial").write_text("years")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "home")
    with pytest.raises(fs.RunError, match="is a link, and Floatscope does not write"):
        run(project, "run")
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".thesis.1.partial"]


def test_nothing_is_added_to_shards_that_do_not_name_their_sources(tmp_path, monkeypatch):
    monkeypatch.delenv("TOY_WEIGHTS")
    plan = toy_worker.plan(3, mishap="refuse")
    with pytest.raises(fs.ModelError):
        execute(plan, tmp_path / "run")
    monkeypatch.setenv("TOY_WEIGHTS", "first")
    with pytest.raises(fs.RunError, match="have no record of their sources"):
        execute(plan, tmp_path / "run")


def test_a_buffer_of_a_checkpoint_is_part_of_the_fingerprint(tmp_path):
    model = fs.load(tiny.write("LLaDA2", tmp_path / "m"))
    before = model.fingerprint
    path = tmp_path / "m" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("expert_bias"))
    weights[name] = weights[name] + 1
    save_file(weights, path, metadata={"format": "pt"})
    assert fs.load(tmp_path / "m").fingerprint != before


def test_plugins_are_pinned_by_path_and_by_module_name(tmp_path, monkeypatch):
    from floatscope.studies.provenance import plugin_digests

    (tmp_path / "my_plugin_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = ["my_plugin_module", str(tmp_path / "my_plugin_module.py"), "no_such_module"]
    before = plugin_digests(named)
    assert before.keys() == {f"plugin {name}" for name in named[:2]}
    (tmp_path / "my_plugin_module.py").write_text("# changed")
    assert all(plugin_digests(named)[name] != digest for name, digest in before.items())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("merge.yaml", "a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}\n"),
        ("dots.toml", ".".join("a" * 49_000) + " = 1\n"),
    ],
)
def test_a_study_file_that_a_parser_would_not_finish_is_refused(tmp_path, name, text):
    from floatscope.studies import read_request

    (tmp_path / name).write_text(text)
    with pytest.raises(
        fs.UsageError, match="cannot be read: (contains a merge key|has a line with)"
    ):
        read_request(tmp_path / name)


def test_a_pipe_as_data_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "q.jsonl")
    with pytest.raises(fs.UsageError, match="is not a regular file"):
        fs.tasks.read_records(tmp_path / "q.jsonl")


def test_answers_are_kept_for_the_same_settings_of_a_model(tmp_path):
    from floatscope.tasks.keeping import asked_of

    path = tiny.write("Llama", tmp_path / "m")
    sampler = fs.Autoregressive(length=2)
    before = asked_of(fs.load(path), sampler, "", "", 1)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    assert asked_of(fs.load(path), sampler, "", "", 1) != before


def test_matplotlib_settings_of_the_working_directory_are_not_read(tmp_path):
    import os
    import subprocess
    import sys

    os.mkfifo(tmp_path / "matplotlibrc")  # reading it would never end
    code = "import sys; sys.argv = ['floatscope', '--version']; from floatscope.cli import main; main()"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code + "; import matplotlib.pyplot"],
        cwd=tmp_path, env=path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
