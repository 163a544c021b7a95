"""Adapters: what a merge gives is what PEFT gives; what cannot be merged is refused by name."""

import json
import re
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_adapters import handmade
from transformers import AutoModelForCausalLM

import floatscope as fs
from floatscope.models import adapters, tiny

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIGS = {
    "all linear maps": {"r": 4, "lora_alpha": 6, "target_modules": LINEAR},
    "patterns": {
        "r": 4,
        "lora_alpha": 3,
        "use_rslora": True,
        "target_modules": r".*layers\.[02]\.self_attn\.[qv]_proj",
        "rank_pattern": {"q_proj": 2, r"layers\.2\.self_attn\.v_proj": 5},
        "alpha_pattern": {r"^model\.layers\.0\.self_attn\.v_proj": 7},
    },
    "whole modules": {
        "r": 2,
        "target_modules": ["up_proj"],
        "layers_to_transform": [1],
        "modules_to_save": ["norm", "input_layernorm", "embed_tokens", "lm_head"],
    },
    "embedding and head": {"r": 3, "target_modules": ["embed_tokens", "lm_head", "o_proj"]},
    "tokens": {
        "r": 2,
        "target_modules": ["q_proj"],
        "trainable_token_indices": {"embed_tokens": [259, 4]},
    },
    "tokens in a list": {"r": 2, "target_modules": ["q_proj"], "trainable_token_indices": [7, 0]},
    "dora": {"r": 4, "use_dora": True, "target_modules": ["q_proj", "down_proj"]},
    "fan in": {"r": 4, "target_modules": ["q_proj"], "fan_in_fan_out": True},
    "biases": {"r": 2, "target_modules": ["q_proj", "o_proj"], "bias": "all"},
    "own biases": {"r": 2, "target_modules": ["k_proj"], "bias": "lora_only"},
    "biases of B": {"r": 2, "target_modules": ["k_proj"], "lora_bias": True},
}
NEED_BIASES = ("biases", "own biases", "biases of B")  # Qwen2 has them
CASES = [("Llama", name) for name in CONFIGS if name not in NEED_BIASES] + [
    ("Qwen2", name) for name in ("all linear maps", "dora", "tokens", *NEED_BIASES)
]


def made_by_peft(base, folder, **config):
    """An adapter with random values in every tensor that it would train; and its logits."""
    torch.manual_seed(0)
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**config)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        return model.eval()(torch.arange(12)[None]).logits


def merged_by_peft(base, folder):
    net = AutoModelForCausalLM.from_pretrained(base)
    return peft.PeftModel.from_pretrained(net, folder).merge_and_unload()


@pytest.fixture(scope="module")
def tied(checkpoints, tmp_path_factory):
    """A Llama whose head is its embedding, as SmolLM2's is."""
    folder = tmp_path_factory.mktemp("tied")
    for file in checkpoints["Llama"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def logits(model):
    return model.logits(torch.arange(12)[None])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("family", "name"), CASES)
def test_merged_weights_equal_those_of_peft(checkpoints, tmp_path, family, name):
    base = checkpoints[family]
    made_by_peft(base, tmp_path, **CONFIGS[name])
    ours = fs.load(base, adapter=tmp_path, check=False, dtype="float32", device="cpu")
    theirs = merged_by_peft(base, tmp_path).state_dict()
    plain = fs.load(base, check=False, dtype="float32", device="cpu").net.state_dict()
    changed = [key for key, value in theirs.items() if not torch.equal(value, plain[key])]
    assert changed
    for key, value in ours.net.state_dict().items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-6)
    assert ours.fingerprint != fs.load(base, check=False, dtype="float32").fingerprint


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "config",
    [
        CONFIGS["tokens"],
        CONFIGS["tokens in a list"],
        {"r": 3, "target_modules": ["embed_tokens", "q_proj"]},
        {"r": 3, "target_modules": ["lm_head"]},
        {"r": 3, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {
            "r": 3,
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ],
    ids=["tokens", "tokens in a list", "embedding", "head", "saved", "saved for both"],
)
def test_an_adapter_of_a_tied_head_equals_peft(tied, tmp_path, config):
    """As the adapter worked when it was trained: PEFT's forward before a merge."""
    expected = made_by_peft(tied, tmp_path, **config)
    ours = fs.load(tied, adapter=tmp_path, dtype="float32", device="cpu")
    torch.testing.assert_close(logits(ours), expected, rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def written(llama, tmp_path_factory):
    return handmade(llama, tmp_path_factory.mktemp("adapter"))


def test_peft_reads_written_adapters(checkpoints, written):
    ours = fs.load(checkpoints["Llama"], adapter=written, check=False)
    theirs = merged_by_peft(checkpoints["Llama"], written).state_dict()
    for key, value in ours.net.state_dict().items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-6)


def test_an_int8_adapter_equals_the_rounded_one(llama, checkpoints, written, tmp_path):
    """Every number within half a step of its scale, a quarter of the size, and nearly the same logits."""
    small = handmade(llama, tmp_path, int8=True)
    packed, whole = (load_file(folder / "adapter_model.safetensors") for folder in (small, written))
    halves = [name for name in whole if ".lora_" in name]
    assert len(halves) == 2 * 7 * 3
    for name in halves:
        assert packed[name].dtype is torch.int8
        scale = packed[f"{name}.scale"]
        assert scale.numel() == 4  # one for each component of the rank
        error = (packed[name].float() * scale - whole[name]).abs()
        assert bool((error <= scale * 0.5001).all())
    base = logits(fs.load(checkpoints["Llama"], check=False))
    one, other = (
        logits(fs.load(checkpoints["Llama"], adapter=folder, check=False))
        for folder in (written, small)
    )
    assert (one - other).abs().max() < 0.03 * (one - base).abs().max()


def test_a_cast_comes_after_the_merge(checkpoints, written, tmp_path):
    """As if the merged weights had been published, and loaded in that dtype."""
    path = tiny.write("Llama", tmp_path / "merged")
    merged = fs.load(checkpoints["Llama"], adapter=written, check=False).net.state_dict()
    save_file(merged, path / "model.safetensors", metadata={"format": "pt"})
    for dtype in ("bfloat16", "float64"):
        expected = fs.load(path, dtype=dtype, check=False)
        ours = fs.load(checkpoints["Llama"], adapter=written, dtype=dtype, check=False)
        assert ours.dtype == expected.dtype
        if dtype == "bfloat16":
            assert ours.fingerprint == expected.fingerprint
            for one, other in zip(ours.net.buffers(), expected.net.buffers(), strict=True):
                assert one.dtype == other.dtype and torch.equal(one, other)
        else:  # the merge itself has more digits
            torch.testing.assert_close(logits(ours), logits(expected), rtol=1e-4, atol=1e-4)


def test_name_and_fingerprint_show_the_adapter(checkpoints, written, tmp_path):
    base = checkpoints["Llama"]
    model = fs.load(base, adapter=written)
    assert model.name == f"{base} + {written}" and model.name in repr(model)
    trace = model.trace([1, 2, 3], fs.Autoregressive(length=2), keep=["mass"])
    assert trace.info["model"] == model.name
    assert trace.info["fingerprint"] == model.fingerprint != fs.load(base).fingerprint
    permuted = fs.load(base, adapter=written, weights="permuted", seed=2, check=False)
    assert permuted.name == f"{model.name} (permuted, seed 2)"


def test_llada_adapters_load_by_llada_and_llama_names(checkpoints, llada, tmp_path):
    """An adapter made on the published code calls modules otherwise; PEFT's formula is the oracle."""
    torch.manual_seed(3)
    a, b = torch.randn(2, 32), torch.randn(48, 2)
    head = torch.randn(264, 32)
    names = {
        "theirs": ("model.transformer.blocks.1.ff_proj", "model.transformer.ff_out"),
        "llama's": ("model.layers.1.mlp.gate_proj", "lm_head"),
    }
    for style, (gate, out) in names.items():
        tensors = {f"{gate}.lora_A.weight": a, f"{gate}.lora_B.weight": b, f"{out}.weight": head}
        path = adapters.write(tmp_path / style, tensors, {"r": 2, "lora_alpha": 6})
        net = fs.load(checkpoints["LLaDA"], adapter=path).net
        expected = dict(llada.net.state_dict())
        expected["model.layers.1.mlp.gate_proj.weight"] = (
            expected["model.layers.1.mlp.gate_proj.weight"] + 3 * b @ a
        )
        expected["lm_head.weight"] = head
        for key, value in net.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-6)


# What is refused


def changed(written, folder, config=None, tensors=None):
    """A copy with other fields or tensors; None takes one away."""
    folder.mkdir()
    fields = json.loads((written / "adapter_config.json").read_text()) | (config or {})
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    weights = load_file(written / "adapter_model.safetensors") | (tensors or {})
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(kept, folder / "adapter_model.safetensors")
    return folder


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type = 'IA3', expected LORA"),
        ({"r": 0}, "r = 0, expected a whole number"),
        ({"r": 2}, "_proj has A of shape .4, .*expected .2,"),
        ({"lora_alpha": "8"}, "lora_alpha = '8', expected a number"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern"),
        ({"rank_pattern": {"((\\w|[.])+)+!": 4}}, "rank_pattern"),  # would be tried for years
        ({"alpha_pattern": {"\\w*\\w*\\w*\\w*!": 4}}, "alpha_pattern"),
        ({"bias": "some"}, "bias = 'some'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"use_qalora": True}, "use_qalora = True"),
        ({"unheard_of": 3}, "unheard_of = 3"),
        ({"target_modules": ["q_proj", "c_attn"]}, "names 'c_attn', which has no tensor"),
        ({"modules_to_save": ["score"]}, "names 'score'"),
        (
            {"trainable_token_indices": None},
            "rows for model.embed.*, which trainable_token_indices does not name",
        ),
        ({"trainable_token_indices": [3, 4]}, "rows of shape .1, 32., expected .2, 32."),
        (
            {"trainable_token_indices": [999]},
            "row 999, but the module of the base model has 264 rows",
        ),
        ({"trainable_token_indices": [-1]}, "trainable_token_indices"),
    ],
)
def test_unsupported_configs_are_refused(checkpoints, written, tmp_path, config, message):
    with pytest.raises(fs.ModelError, match=message):
        fs.load(checkpoints["Llama"], adapter=changed(written, tmp_path / "a", config))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{Q}.lora_B.weight": None}, "q_proj has A but no B"),
        ({f"{Q}.lora_B.weight": torch.ones(31, 4)}, "q_proj has B of shape .31, 4., expected .32"),
        ({f"{Q}.lora_B.weight": torch.full((32, 4), torch.nan)}, "NaN or infinity"),
        ({f"{Q}.lora_E": torch.ones(4)}, "lora_E is not part of a LoRA"),
        (
            {f"{Q}.lora_B.bias": torch.ones(32)},
            "q_proj has a bias, which the module of the base model does not have",
        ),
        ({f"{Q}.lora_A.weight": torch.ones(4, 32, dtype=torch.int8)}, "lora_A.weight is int8"),
        ({f"{Q}.lora_A.weight": torch.ones(4, 32, dtype=torch.int32)}, "expected floats or int8"),
        (
            {"model.layers.9.mlp.up_proj.weight": torch.ones(2, 2)},
            "layers.9.mlp.up_proj, which the",
        ),
        ({"model.norm.lora_A.weight": torch.ones(4, 32)}, "norm has A but no B"),
        ({"base_model.model.model.norm.weight": torch.ones(31)}, "norm has weight of shape .31"),
        (
            {"model.layers.0.mlp.weight": torch.ones(3)},
            "mlp has a weight, which the module of the base",
        ),
        ({"model.norm.weight": torch.ones(32)}, "weight of model.norm twice"),
    ],
)
def test_tensors_without_a_module_are_refused(checkpoints, written, tmp_path, tensors, message):
    with pytest.raises(fs.ModelError, match=message):
        fs.load(checkpoints["Llama"], adapter=changed(written, tmp_path / "a", None, tensors))


def test_directories_without_an_adapter_are_refused(checkpoints, llama, written, tmp_path):
    base = checkpoints["Llama"]
    with pytest.raises(fs.ModelError, match="no adapter at .*nowhere"):
        fs.load(base, adapter=tmp_path / "nowhere")
    with pytest.raises(fs.ModelError, match=r"has no adapter_config\.json"):
        fs.load(base, adapter=tmp_path)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (pickled / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(fs.ModelError, match=r"pickled weights \(adapter_model\.bin\)"):
        fs.load(base, adapter=pickled)
    (pickled / "adapter_model.bin").rename(pickled / "adapter_model.safetensors")
    with pytest.raises(fs.ModelError, match=r"pickled weights \(adapter_model\.safetensors\)"):
        fs.load(base, adapter=pickled)
    with pytest.raises(fs.ModelError, match="this network is already loaded"):
        fs.load(llama.net, adapter=written)
    with pytest.raises(fs.ModelError, match="which the base model does not have"):
        fs.load(
            checkpoints["Llama"],
            adapter=changed(
                written, tmp_path / "x", None, {"model.transformer.wte.weight": torch.ones(264, 32)}
            ),
        )


def test_peft_is_not_needed():
    """It is a test's oracle, and nobody's dependency."""
    files = list(Path(fs.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    assert not [f for f in files if re.search(r"^\s*(import|from) peft", f.read_text(), re.M)]


# What the directory says of itself


def test_a_merge_must_reproduce_the_stored_logits(checkpoints, llama, tmp_path):
    base, path = checkpoints["Llama"], handmade(llama, tmp_path / "a")
    model = fs.load(base, adapter=path)
    adapters.write_selfcheck(path, model, tokens=[5, 9, 259, 40], rows=[0, 3])
    content = json.loads((path / "selfcheck.json").read_text())
    assert [len(row) for row in content["logits"]] == [8, 8]
    for dtype in ("float32", "bfloat16", "float64"):  # checked before the cast
        fs.load(base, adapter=path, dtype=dtype)
    other = tiny.write("Llama", tmp_path / "other", tiny.Shape(seed=1))
    with pytest.raises(fs.ModelError, match="'the adapter's logits' failed .* off by"):
        fs.load(other, adapter=path)
    with pytest.raises(fs.ModelError, match="'the adapter's logits' failed"):
        fs.load(base, adapter=path, direction="bidirectional", mask_id=259)
    for broken in (
        {"tokens": []}, {"tokens": [264]}, {"tokens": [1] * 513}, {"rows": [4]}, {"rows": [0]},
        {"logits": [[0.0] * 8, [0.0] * 7]}, {"tolerance": None}, {"tokens": "1"},
    ):  # fmt: skip
        (path / "selfcheck.json").write_text(json.dumps(content | broken))
        with pytest.raises(fs.ModelError, match=r"selfcheck\.json: expected tokens"):
            fs.load(base, adapter=path)
