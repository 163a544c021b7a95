"""Hostile checkpoints: code that waits to be run, pickles under other names, models in disguise."""

import ast
import io
import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_adapters import handmade

import floatscope as fs
from floatscope.models import source, tiny
from floatscope.models.outline import outlined
from floatscope.models.spec import ModelSpec

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
    # A network is given its tensors, never a directory in which transformers finds other files.
    networks = [node for _, node in calls if ast.unparse(node.func.value).endswith("network_class")]
    assert len(networks) == 2
    for node in networks:
        assert ast.unparse(node.args[0]) == "None"
        assert "state_dict" in [k.arg for k in node.keywords]


@pytest.fixture
def with_adapter(checkpoint, llama, tmp_path):
    """A checkpoint, the adapter that lies beside its weights, and the same adapter elsewhere."""
    path, adapter = checkpoint("Llama"), handmade(llama, tmp_path / "adapter")
    for file in adapter.iterdir():
        shutil.copy(file, path)
    return path, adapter


@pytest.mark.parametrize("peft", [True, False])
def test_an_adapter_beside_a_checkpoint_is_refused_unless_it_is_named(
    with_adapter, checkpoints, monkeypatch, peft
):
    path, adapter = with_adapter
    monkeypatch.setattr("transformers.integrations.peft.is_peft_available", lambda: peft)
    for options in ({}, {"adapter": adapter}):
        with pytest.raises(fs.ModelError, match="contains an adapter beside its weights") as caught:
            fs.load(path, **options)
        assert f"adapter={str(path)!r}" in caught.value.remedy
        spec = ModelSpec(str(path), **{k: str(v) for k, v in options.items()})
        with pytest.raises(fs.ModelError, match="contains an adapter beside its weights"):
            outlined(spec)
    merged = fs.load(checkpoints["Llama"], adapter=adapter).fingerprint
    assert fs.load(path, adapter=path).fingerprint == merged
    assert fs.load(path, adapter=path / ".." / path.name).fingerprint == merged
    assert outlined(ModelSpec(str(path), adapter=str(path))) is not None
    (path / "adapter_config.json").unlink()
    assert fs.load(path).fingerprint == fs.load(checkpoints["Llama"]).fingerprint


@pytest.mark.parametrize(
    "name", ["adapter_model.bin", "other.safetensors", "../x.safetensors", "x.bin"]
)
def test_a_config_cannot_choose_the_file_of_the_weights(checkpoint, llama, name):
    """transformers reads the file that `transformers_weights` names, a pickle among them."""
    path = checkpoint("Llama")
    other = {key: tensor + 1 for key, tensor in llama.net.state_dict().items()}
    save = torch.save if name.endswith(".bin") else save_file
    save(other, path / name)
    change(path / "config.json", transformers_weights=name)
    assert fs.load(path).fingerprint == llama.fingerprint


def test_weights_under_other_names_are_refused(checkpoint):
    path = checkpoint("Llama")
    (path / "model.safetensors").rename(path / "shard-00000-model-00001-of-00001.safetensors")
    with pytest.raises(fs.ModelError, match=r"contains neither model\.safetensors nor"):
        fs.load(path)


def test_a_shard_that_is_missing_is_named(tmp_path):
    path = tiny.write("Llama", tmp_path / "m", shards=2)
    gone = sorted(path.glob("*.safetensors"))[0]
    gone.unlink()
    with pytest.raises(fs.ModelError, match=f"lacks {gone.name}, which its index names"):
        fs.load(path)


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


NO_MAP = "does not map tensors to files"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[]", "holds a list: expected a JSON object"),
        ('{"weight_map": 3}', NO_MAP),
        ('{"weight_map": null}', NO_MAP),
    ],
)
def test_a_damaged_index(tmp_path, text, words):
    path = tiny.write("Llama", tmp_path / "m", shards=2)
    (path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(fs.ModelError, match=words):
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
    with pytest.raises(fs.ModelError, match=r"the class modeling_floaty\.FloatyModel and a mask"):
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
