"""A model as a person names it: one text, or one table, from the command line to the page."""

import json

import pytest
from typer.testing import CliRunner

import floatscope as fs
from floatscope.cli import app
from floatscope.errors import ModelError, UsageError
from floatscope.models.spec import ModelSpec
from floatscope.studies import Findings, request_of

LONG = "ours=./dir,family=Llama,direction=bidirectional,shift=1,mask_id=4,override_mask=true,adapter=DIR2"


def test_a_text_and_a_table_give_the_same_spec():
    spec = ModelSpec.parse(LONG)
    table = {
        "where": "./dir",
        "name": "ours",
        "adapter": "DIR2",
        "family": "Llama",
        "direction": "bidirectional",
        "shift": 1,
        "mask_id": 4,
        "override_mask": True,
    }
    assert spec == ModelSpec.from_value(table) == ModelSpec(**table) == ModelSpec.from_value(spec)
    assert spec.text == LONG and ModelSpec.parse(spec.text) == spec
    assert spec.settings == {k: v for k, v in table.items() if k != "where"}


@pytest.mark.parametrize("where", ["pair/mdm", "./dir", "owner/name", "a b.gguf", "~/x"])
def test_a_plain_path_has_no_settings(where):
    assert ModelSpec.parse(where) == ModelSpec(where) and ModelSpec(where).text == where


def test_a_path_may_contain_separators(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1e-4,warm").mkdir()
    assert ModelSpec.parse("lr=1e-4,warm") == ModelSpec("lr=1e-4,warm")
    (tmp_path / "lr=1e-4").mkdir()
    spec = ModelSpec.parse("lr=1e-4,mask_id=3")
    assert (spec.where, spec.name, spec.mask_id) == ("lr=1e-4", None, 3)
    with pytest.raises(UsageError, match="Rename it, or make a link"):
        _ = ModelSpec("lr=1e-4,warm", name="ours", mask_id=3).text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("dir,famly=Llama", "'famly=Llama' is no setting.*family, direction"),
        ("dir,llama", "'llama' is no setting"),
        ("dir,shift=1,shift=2", "is given twice"),
        ("ours=dir,name=theirs", "two names"),
        ("dir,shift=one", "shift = 'one'.*whole number"),
        ("dir,direction=both", "direction = 'both'.*bidirectional"),
        ("=dir", "no such|is no setting|where"),
        ({"path": "dir"}, "no setting 'path'.*where"),
        ({"name": "ours"}, "location .where. is missing"),
        ({"where": "dir", "shift": True}, "shift = True"),
        ({"where": "dir", "name": "a=b"}, "a name without = ,"),
        ({"where": "dir", "name": "a\nb"}, "one line"),
        (3, "Write .NAME=.WHERE"),
    ],
)
def test_errors_name_the_invalid_setting(given, says):
    with pytest.raises((UsageError, ModelError), match=f"(?s){says}"):
        spec = ModelSpec.from_value(given)
        spec.require_there()


def test_load_takes_the_text_and_an_argument_wins(checkpoints):
    where = checkpoints["Llama"]
    text = f"ours={where},direction=bidirectional,shift=1,mask_id=259"
    model = fs.load(text)
    assert (model.name, model.shift, model.mask_id) == ("ours", 1, 259) and model.is_diffusion
    by_hand = fs.load(where, name="ours", direction="bidirectional", shift=1, mask_id=259)
    assert model.fingerprint == by_hand.fingerprint and by_hand.name == "ours"
    assert fs.load(text, mask_id=5, override_mask=True, name="mine").mask_id == 5
    assert fs.load(ModelSpec.parse(text)).name == "ours"
    assert fs.load(fs.load(where).net, name="given").name == "given"
    with pytest.raises(UsageError, match="without = ,"):
        fs.load(where, name="a,b")


@pytest.fixture(scope="module")
def walked(checkpoints, tmp_path_factory):
    """An adapted checkpoint through study and evaluate, beside one that says itself what it is."""
    folder = tmp_path_factory.mktemp("walk")
    adapted = folder / "adapted"
    adapted.mkdir()
    for file in checkpoints["Llama"].iterdir():
        (adapted / file.name).write_bytes(file.read_bytes())
    config = folder / "run.toml"
    config.write_text(
        f"""
studies = ["floating"]
data = "world:one"
limit = 2
questions = 2
length = 4
steps = 2
shard = 1
controls = 0
[[models]]
name = "ours"
where = "{adapted}"
family = "Llama"
direction = "bidirectional"
shift = 1
mask_id = 259
[[models]]
where = "{adapted}"
name = "before"
"""
    )
    done = CliRunner().invoke(
        app, ["study", "--config", str(config), "--out", str(folder / "run"), "--workers", "2"]
    )
    assert done.exit_code == 0, done.output + str(done.exception)
    return folder, adapted


def test_tables_and_pages_show_the_name_of_the_model(walked):
    folder, adapted = walked
    found = Findings(folder / "run")
    assert list(found.models) == ["ours", "before"] == [m["name"] for m in found.models.values()]
    assert found.mdm == "ours" and found.arm == "before"
    assert set(found.tables["absorption"]["model"]) == {"ours", "before"}
    page = (folder / "run" / "report.html").read_text()
    assert ">ours<" in page
    stored = json.loads((folder / "run" / "run.json").read_text())["request"]["models"]
    assert stored[0] == f"ours={adapted},family=Llama,direction=bidirectional,shift=1,mask_id=259"


def test_stored_requests_and_flags_accept_the_model_text(walked):
    folder, adapted = walked
    request = Findings(folder / "run").request
    again = request_of({**request.as_json(), "models": list(request.models)})
    assert again == request
    text = f"ours={adapted},family=Llama,direction=bidirectional,shift=1,mask_id=259"
    asked = CliRunner().invoke(
        app, f"evaluate --model {text} --data world:one --limit 2 --length 4".split()
    )
    assert asked.exit_code == 0 and "ours" in asked.output, asked.output + str(asked.exception)


def test_floatscope_json_can_name_the_model(walked):
    folder, adapted = walked
    said = {"name": "stated", "direction": "bidirectional", "shift": 1, "mask_id": 259}
    (adapted / "floatscope.json").write_text(json.dumps(said))
    fields = {
        "studies": ["floating"],
        "models": [str(adapted)],
        "data": "world:one",
        "limit": 2,
        "length": 4,
        "steps": 2,
        "controls": 0,
    }
    from floatscope.studies.run import run

    _, found = run(request_of(fields), folder / "stated")
    assert list(found.models) == ["stated"] and found.mdm == "stated"
    (adapted / "floatscope.json").unlink()


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (["a=x", "a=y"], "named twice"),
        (["x,famly=Llama"], "no setting"),
        ([{"where": "x", "direction": "up"}], "direction = 'up'"),
        ([3], "Write"),
    ],
)
def test_a_request_refuses_invalid_models(models, says):
    with pytest.raises(UsageError, match=says):
        request_of({"studies": ["floating"], "models": models})


def test_a_missing_model_is_reported_before_a_worker_starts(tmp_path):
    from floatscope.studies.run import run

    request = request_of({"studies": ["floating"], "models": ["./nowhere"], "data": "world:one"})
    with pytest.raises(ModelError, match="no such model: ./nowhere"):
        run(request, tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()
    request = request_of({"studies": ["floating"], "models": ["pair/mdm,adapter=./none"]})
    with pytest.raises(ModelError, match="no adapter in ./none"):
        run(request, tmp_path / "run", workers=2)
