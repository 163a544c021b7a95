"""A run says what it read, goes on with nothing else, and can be repeated by somebody else."""

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from floatscope.cli import app
from floatscope.decode import SAMPLERS
from floatscope.errors import RunError, UsageError
from floatscope.interventions import INTERVENTIONS
from floatscope.measures import MEASURES
from floatscope.models import FAMILIES
from floatscope.studies import STUDIES, Findings
from floatscope.studies.provenance import repeated

MINE = ("--plugin", "mine.py")
PLUGIN = """
import floatscope as fs
from floatscope.studies import Setting

@fs.register
class Asked(fs.Study):
    name = "asked"
    question = "Is it asked?"
    method = "it is"

    def settings(self, request):
        return [Setting("with-passages", request.asked_as)]
"""


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """What a plugin registers, when these tests have ended."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (MEASURES, SAMPLERS, INTERVENTIONS, FAMILIES, STUDIES):
            patch.setattr(registry, "_added", dict(registry._added))
        yield


@pytest.fixture(scope="module")
def project(checkpoints, tmp_path_factory, forgotten):
    """A folder with a checkpoint, data and a plugin; a run in it, with paths as one types them."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(checkpoints["Llama"], folder / "adapted")
    (folder / "adapted" / "floatscope.json").write_text('{"name": "ours"}')
    rows = [
        {"question": f"Number {i}?", "answers": [f"w{i}"], "passages": [f"{i} is w{i}.", "No."]}
        for i in range(3)
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "mine.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command(
            *"study floating asked --plugin mine.py --data questions.jsonl --limit 2".split(),
            *"--questions 2 --length 4 --steps 2 --controls 0 --out run --model".split(),
            "./adapted,direction=bidirectional,shift=1,mask_id=259",
        )
    return folder


@pytest.fixture
def there(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


WRITTEN = ("summary.json", "registration.json")


def produced(run):
    return {
        file.relative_to(run): file.read_bytes()
        for file in [
            *run.glob("shards/*.shard"),
            *run.glob("results/*"),
            *map(run.joinpath, WRITTEN),
        ]
    }


def test_run_json_holds_checksums_of_what_was_read(project):
    run = json.loads((project / "run" / "run.json").read_text())
    model = "model ./adapted,direction=bidirectional,shift=1,mask_id=259"
    files = {"data questions.jsonl", f"plugin {project / 'mine.py'}", "registration.json"}
    assert run["sources"].keys() == {*files, model, f"settings of {model}"}
    assert all(len(run["sources"][name]) == 64 for name in files)
    assert run["about"]["folder"] == str(project)
    assert list(Findings(project / "run").models) == ["ours"]


def test_a_run_repeated_from_another_folder_gives_the_same_bytes(project, tmp_path, monkeypatch):
    """The run's directory was moved, and whoever repeats it stands somewhere else."""
    shutil.copytree(project / "run", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"names plugins.* --plugin .*mine.py"):
        command("study", "--config", "moved/run.json", "--out", "again")
    plugin = ("--plugin", project / "mine.py")
    command("study", "--config", "moved/run.json", "--out", "again", *plugin)
    assert produced(tmp_path / "again") == produced(project / "run")
    assert not (project / "again").exists()
    report = command("report", "moved", *plugin)
    assert "report.html" in report


def test_a_flag_overrides_the_stored_request(there, tmp_path):
    command("study", "--config", "run/run.json", "--limit", 3, "--out", tmp_path / "more", *MINE)
    asked = [Findings(run).request for run in (there / "run", tmp_path / "more")]
    assert asked[1] == asked[0].model_copy(update={"limit": 3})


@pytest.mark.parametrize("name", ["questions.jsonl", "mine.py"])
def test_changed_files_are_named_before_the_run(there, tmp_path, name):
    before = (there / name).read_text()
    (there / name).write_text(before + "\n")
    try:
        with pytest.raises(UsageError, match=f"{name} is not what the run read"):
            command("study", "--config", "run/run.json", "--out", tmp_path / "again", *MINE)
    finally:
        (there / name).write_text(before)
    assert not (tmp_path / "again").exists()


def test_a_run_is_not_resumed_with_changed_data(there, tmp_path):
    data = tmp_path / "q.jsonl"
    shutil.copy(there / "questions.jsonl", data)
    words = (
        f"study floating --data {data} --limit 2 --length 4 --steps 2 --controls 0 --out".split()
    )
    words += [tmp_path / "run", "--model", "adapted"]
    command(*words)
    command(*words)  # nothing has changed
    data.write_text(data.read_text() + "\n")
    with pytest.raises(RunError, match="has changed since .* was started"):
        command(*words)
    command(*words, "--overwrite")


def test_missing_files_are_named(there, tmp_path, monkeypatch):
    run = json.loads((there / "run" / "run.json").read_text())
    run["about"]["folder"] = str(tmp_path / "gone")
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"questions.jsonl, which the run read, is not here.*gone"):
        command(
            "study", "--config", file, "--out", tmp_path / "again", "--plugin", there / "mine.py"
        )
    assert os.getcwd() == str(tmp_path)


def test_a_model_that_was_named_without_a_path_is_found_where_the_run_was_made(
    there, tmp_path, monkeypatch
):
    run = json.loads((there / "run" / "run.json").read_text())
    run["request"]["models"] = ["adapted,direction=bidirectional,shift=1,mask_id=259"]
    fields, folder = repeated(run, there / "run.json", {"plugins": [str(there / "mine.py")]})
    assert folder == Path()  # here
    monkeypatch.chdir(tmp_path)
    fields, folder = repeated(run, there / "run.json", {"plugins": [str(there / "mine.py")]})
    assert folder == there and fields["models"] == run["request"]["models"]


def test_an_absolute_path_that_is_gone_can_be_a_link(there, tmp_path):
    gone = tmp_path / "gone" / "adapted"
    run = json.loads((there / "run" / "run.json").read_text())
    run["request"]["models"] = [f"{gone},direction=bidirectional,shift=1,mask_id=259"]
    given = {"plugins": [str(there / "mine.py")]}
    with pytest.raises(
        UsageError, match=r"adapted, which the run read, is not here.*a link is enough"
    ):
        repeated(run, there / "run.json", given)
    gone.parent.mkdir()
    gone.symlink_to(there / "adapted")
    assert repeated(run, there / "run.json", given)[1] == Path()


def test_a_sample_of_shards_is_computed_again_byte_for_byte(there):
    said = command("verify", "run", "--shards", 9, "--plugin", "mine.py")
    assert said.count("byte for byte") == len(list((there / "run" / "shards").glob("*.shard")))
    assert "✗" not in said


def test_verify_detects_changed_weights_numbers_and_answers(there, tmp_path):
    from floatscope.engine import Output
    from floatscope.studies.verifying import _compare_shard, verify

    [one, *_] = list(verify("run", sample=1, seed=3))
    assert one.exact
    found = Findings("run")
    shard = next(s for s in found.plan.shards if s.spec["kind"] == "trace")
    stored = found.run.read(shard.id)
    name, variable = next(
        (name, variable)
        for name, data in stored.data.items()
        for variable, array in data.data_vars.items()
        if array.dtype.kind == "f" and array.size
    )
    bent = stored.data[name].copy(deep=True)
    bent[variable].values.reshape(-1)[0] += 0.5
    near = _compare_shard(shard, stored, Output(stored.data | {name: bent}, stored.meta))
    assert near.largest == pytest.approx(0.5) and not near.differs and not near.exact
    other = {**stored.meta, "model": {**stored.meta["model"], "fingerprint": "0"}}
    assert "fingerprint was" in _compare_shard(shard, stored, Output(stored.data, other)).differs
    said = json.loads(json.dumps(stored.meta))
    said["examples"][0]["text"] = "else"
    assert "'else' instead of" in _compare_shard(shard, stored, Output(stored.data, said)).differs


def test_scenes_are_not_compared(there):
    """Another machine's last digit may be another code of a scene, and the measures are compared."""
    from floatscope.engine import Output
    from floatscope.studies.verifying import _compare_shard

    found = Findings("run")
    shard = next(s for s in found.plan.shards if s.spec["kind"] == "trace")
    now = found.run.read(shard.id)
    shown = now.data["0/page"]
    other = Output(now.data | {"0/page": shown + 1}, now.meta)
    assert shown.data_vars and _compare_shard(shard, other, now).exact


def test_verify_fails_where_the_weights_have_changed(there, checkpoints, tmp_path, monkeypatch):
    shutil.copytree(there, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    model = tmp_path / "copy" / "adapted" / "model.safetensors"
    from safetensors.torch import load_file, save_file

    weights = {k: v * 1.01 for k, v in load_file(model).items()}
    save_file(weights, model, metadata={"format": "pt"})
    with pytest.raises(RunError, match="1 of 1 shards differ from what is stored"):
        command("verify", "run", "--shards", 1, "--plugin", "mine.py")


def test_a_report_without_the_plugin_shows_the_rest_and_says_what_is_missing(
    project, tmp_path, monkeypatch
):
    from floatscope.studies import STUDIES

    shutil.copytree(project / "run", tmp_path / "run")
    monkeypatch.setattr(STUDIES, "_added", {})
    found = Findings(tmp_path / "run")
    assert [study.name for study in found.studies] == ["floating"]
    assert "an unknown study 'asked': it is left out" in found.notes[0]
    assert "--plugin" in found.notes[0] and found.claims["floating"]
    command("report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "an unknown study 'asked': it is left out" in page.replace("&#39;", "'")
