"""Hostile checkpoints: code that waits to be run, pickles under other names, models in disguise."""

import ast
import io
import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import floatscope as fs
from floatscope.models import source, tiny

SOURCE = Path(fs.__file__).parent
CANARY = "from pathlib import Path\nPath({mark!r}).touch()\nclass Evil:\n    pass\n"


@pytest.fixture
def checkpoint(checkpoints, tmp_path):
    """A copy to spoil."""

    def copy(family):
        return Path(shutil.copytree(checkpoints[family], tmp_path / family))

    return copy


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("files", ["vocab.json", "tokenizer.model", "tokenizer.json"])
@pytest.mark.parametrize("family", ["Dream", "Llama"])
def test_no_way_in_for_a_tokenizers_code(checkpoint, family, files, tmp_path, monkeypatch):
    """On "y" transformers would run the file that `auto_map` names."""
    path, mark = checkpoint(family), tmp_path / "ran"
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\ny\n"))
    (path / "evil.py").write_text(CANARY.format(mark=str(mark)))
    config = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    change(path / "tokenizer_config.json", **config)
    if files != "tokenizer.json":
        (path / "tokenizer.json").unlink(missing_ok=True)
        (path / files).touch()
    with suppress(fs.ModelError):  # or it loads, without that file
        fs.load(path)
    assert not mark.exists()


@pytest.mark.parametrize("family", ["LLaDA", "Dream", "Llama"])
def test_no_way_in_for_a_models_code(checkpoint, family, tmp_path, monkeypatch):
    path, mark = checkpoint(family), tmp_path / "ran"
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (path / "evil.py").write_text(CANARY.format(mark=str(mark)))
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
    change(path / "config.json", auto_map=dict.fromkeys(names, "evil.Evil"))
    (path / "generation_config.json").write_text(json.dumps({"custom_generate": "evil.py"}))
    fs.load(path, direction="causal" if family == "Llama" else None)
    assert not mark.exists()


def test_every_from_pretrained_refuses_code():
    calls = [
        (path, node)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("from_pretrained", "from_config")
    ]
    assert len(calls) >= 6 and source.NO_CODE["trust_remote_code"] is False
    for path, node in calls:
        spread = [ast.unparse(k.value) for k in node.keywords if k.arg is None]
        assert any(text.endswith("NO_CODE") for text in spread), f"{path}:{node.lineno}"


@pytest.mark.parametrize("name", ["evil.bin", "../evil.safetensors", "/evil.safetensors", 3])
def test_an_index_stays_inside_and_names_no_pickle(checkpoints, tmp_path, name):
    path = tiny.write("Llama", tmp_path / "m", shards=2)
    index = path / "model.safetensors.index.json"
    names = json.loads(index.read_text())
    first = next(iter(names["weight_map"]))
    names["weight_map"][first] = name
    index.write_text(json.dumps(names))
    with pytest.raises(fs.ModelError, match=r"expected a \*\.safetensors file beside it"):
        fs.load(path)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": null}'])
def test_a_damaged_index(tmp_path, text):
    path = tiny.write("Llama", tmp_path / "m", shards=2)
    (path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(fs.ModelError, match="does not say which file holds what"):
        fs.load(path)


def test_a_pickle_under_another_name(checkpoint):
    path = checkpoint("Llama")
    (path / "model.safetensors").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(fs.ModelError, match="pickled weights"):
        fs.load(path)


def test_a_diffusion_model_that_calls_itself_llama(checkpoint):
    path = checkpoint("Llama")
    theirs = {"AutoModelForCausalLM": "modeling_floaty.FloatyModel"}
    change(path / "config.json", auto_map=theirs, mask_token_id=tiny.MASK)
    with pytest.raises(fs.ModelError, match=r"brings modeling_floaty\.FloatyModel and a mask"):
        fs.load(path)
    assert not fs.load(path, direction="causal").is_diffusion
    assert fs.load(path, direction="bidirectional", mask_id=tiny.MASK).is_diffusion


def test_a_header_that_begins_as_a_pickle_does(tmp_path):
    """A length of 128, 384, … bytes: one file in 32, and none of them a pickle."""
    path = tiny.write("Llama", tmp_path / "a")
    file = path / "model.safetensors"
    weights = load_file(file)
    for n in range(400):
        save_file(weights, file, metadata={"format": "pt", "more": "x" * n})
        if file.read_bytes()[:1] == b"\x80":
            break
    else:
        pytest.fail("no length of metadata gave such a header")
    fs.load(path, check=False)
