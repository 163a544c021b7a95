"""Loading every family natively, and refusing what is damaged, with the cause and the remedy."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import DIFFUSION, FAMILIES

import floatscope as fs
from floatscope.attention import selfcheck
from floatscope.models import Direction, attention_hook, tiny


@pytest.fixture
def copy_of(checkpoints, tmp_path):
    def copy(family):
        return shutil.copytree(checkpoints[family], tmp_path / family)

    return copy


def edit_config(path, **fields):
    config = json.loads((path / "config.json").read_text())
    config.update(fields)
    config = {k: v for k, v in config.items() if v is not ...}
    (path / "config.json").write_text(json.dumps(config))


def edit_weights(path, edit):
    file = path / "model.safetensors"
    weights = load_file(file)
    edit(weights)
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_has_the_facts_of_its_family(models, family):
    model = models[family]
    assert model.family.name == family
    assert model.direction == ("bidirectional" if family in DIFFUSION else "causal")
    assert model.mask_id == (259 if family in DIFFUSION else None)
    assert model.shift == (0 if family == "LLaDA" else 1)
    assert model.context == 512
    assert 257 in model.end_ids
    assert {256, 257, 258, 259} <= model.special_ids
    assert len(model.fingerprint) == 16
    assert family in repr(model)
    assert "layers" in repr(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_encoded_and_decoded(models, family):
    text = "Ünïcode, 漢字 and\nnewlines"
    model = models[family]
    encoded = model.encode(fs.Prompt.plain(text, chat=False))
    body = [i for i, r in zip(encoded.ids, encoded.regions, strict=True) if r == "prompt"]
    assert model.tokenizer.decode(body) == text


def test_llada_equals_the_llama_it_translates_to(checkpoints, models):
    """Every LLaDA tensor sits where the reference code uses it: by hand, without our mapping."""
    raw = load_file(checkpoints["LLaDA"] / "model.safetensors")
    net = models["LLaDA"].net
    block = "model.transformer.blocks.1."
    layer = net.model.layers[1]
    for theirs, ours in {
        "q_proj": layer.self_attn.q_proj,
        "k_proj": layer.self_attn.k_proj,
        "v_proj": layer.self_attn.v_proj,
        "attn_out": layer.self_attn.o_proj,
        "ff_proj": layer.mlp.gate_proj,
        "up_proj": layer.mlp.up_proj,
        "ff_out": layer.mlp.down_proj,
        "attn_norm": layer.input_layernorm,
        "ff_norm": layer.post_attention_layernorm,
    }.items():
        assert torch.equal(raw[block + theirs + ".weight"], ours.weight), theirs
    assert torch.equal(raw["model.transformer.ff_out.weight"], net.lm_head.weight)
    assert torch.equal(raw["model.transformer.wte.weight"], net.model.embed_tokens.weight)
    assert torch.equal(raw["model.transformer.ln_f.weight"], net.model.norm.weight)


def llada_by_hand(weights, config, ids):
    """LLaDA's forward written out from its paper and config: the upstream arithmetic, in float64."""
    w = {k.removeprefix("model.transformer."): v.double() for k, v in weights.items()}
    n_heads = config["n_heads"]

    def norm(x, g):
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * g

    x = w["wte.weight"][ids]  # (s, d)
    size, width = x.shape
    dim = width // n_heads
    angle = torch.arange(size).double()[:, None] * config["rope_theta"] ** (
        -torch.arange(0, dim, 2).double() / dim
    )
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def rotate(t):  # (h, s, dim)
        half = torch.cat([-t[..., dim // 2 :], t[..., : dim // 2]], -1)
        return t * cos + half * sin

    for i in range(config["n_layers"]):
        b = f"blocks.{i}."
        h = norm(x, w[b + "attn_norm.weight"])
        q, k, v = (
            (h @ w[f"{b}{n}_proj.weight"].T).view(size, n_heads, dim).transpose(0, 1) for n in "qkv"
        )
        a = (rotate(q) @ rotate(k).mT / dim**0.5).softmax(-1)  # no mask: both directions
        x = x + (a @ v).transpose(0, 1).reshape(size, width) @ w[b + "attn_out.weight"].T
        h = norm(x, w[b + "ff_norm.weight"])
        gate = torch.nn.functional.silu(h @ w[b + "ff_proj.weight"].T)
        x = x + (gate * (h @ w[b + "up_proj.weight"].T)) @ w[b + "ff_out.weight"].T
    return norm(x, w["ln_f.weight"]) @ w["ff_out.weight"].T


def test_llada_logits_equal_its_arithmetic(checkpoints, models):
    weights = load_file(checkpoints["LLaDA"] / "model.safetensors")
    config = json.loads((checkpoints["LLaDA"] / "config.json").read_text())
    ids = torch.randint(0, 256, (20,))
    found = models["LLaDA"].logits(ids[None])[0].double()
    torch.testing.assert_close(found, llada_by_hand(weights, config, ids), rtol=1e-4, atol=1e-4)


def test_bf16_llada_rotates_in_float32(checkpoints):
    model = fs.load(checkpoints["LLaDA"], dtype="bfloat16", check=False)
    seen = []

    def look(call, proceed):
        seen.append((call.query.dtype, call.key.dtype))
        return proceed(call)

    with attention_hook.attach(model.net, look):
        model.logits(torch.arange(8)[None])
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    cos, _ = model.net.model.rotary_emb(torch.zeros(1, 1, 1).bfloat16(), torch.arange(8)[None])
    assert cos.dtype == torch.float32


def test_a_model_can_be_loaded_in_float64(checkpoints):
    assert fs.load(checkpoints["Dream"], dtype="float64").dtype == torch.float64


def test_sharded_checkpoints(tmp_path, models):
    path = tiny.write("LLaDA", tmp_path / "sharded", shards=3)
    assert fs.load(path).fingerprint == models["LLaDA"].fingerprint


def test_an_already_loaded_network(models, checkpoints):
    from transformers import LlamaForCausalLM

    net = LlamaForCausalLM.from_pretrained(checkpoints["Llama"])
    before = net.config._attn_implementation
    model = fs.load(net, tokenizer=models["Llama"].tokenizer)
    assert net.config._attn_implementation == before
    one = model.generate("Hi", fs.Autoregressive(length=6))
    assert one.answer_ids == models["Llama"].generate("Hi", fs.Autoregressive(length=6)).answer_ids
    assert net.config._attn_implementation == before
    with pytest.raises(fs.ModelError, match="expects a Qwen2ForCausalLM, got a Llama"):
        fs.load(net, family="Dream")
    with pytest.raises(fs.ModelError, match="this network is already loaded"):
        fs.load(net, dtype="bfloat16")


def test_an_already_loaded_network_of_another_direction(checkpoints, models):
    """LLaDA's weights in a plain Llama: what family= is for."""
    net = models["LLaDA"].net
    model = fs.load(net, tokenizer=models["LLaDA"].tokenizer, family="LLaDA", mask_id=259)
    sampler = fs.Confidence(length=6, steps=3)
    assert (
        model.generate("Hi", sampler).answer_ids
        == models["LLaDA"].generate("Hi", sampler).answer_ids
    )


def test_block_causal_models(checkpoints):
    """A derived model: Qwen2 weights, blocks of four, masks."""
    model = fs.load(checkpoints["Qwen2"], direction="block-causal", block=4, mask_id=259, shift=0)
    assert model.direction is Direction.BLOCK_CAUSAL
    sampler = fs.Confidence(length=8, steps=8, block_length=4, stop_at_eos=False)
    prompts = ["Hello", "Hello, world"]
    for prompt, trace in zip(prompts, model.trace(prompts, sampler), strict=True):
        alone = model.trace(prompt, sampler)
        assert (trace.canvas.values == alone.canvas.values).all()
        assert float(abs(trace.mass - alone.mass).max()) < 1e-5
        # All that is there sees the first block, and in the end all is there.
        assert int(trace.data["visible"].values[-1, 0]) == trace.data.sizes["key"]


def test_fingerprints_tell_weights_apart(models, copy_of):
    path = copy_of("Llama")

    def swap(weights):
        w = weights["model.layers.0.mlp.up_proj.weight"]
        w[0, 0], w[0, 1] = w[0, 1].clone(), w[0, 0].clone()

    edit_weights(path, swap)
    assert fs.load(path).fingerprint != models["Llama"].fingerprint


# What is wrong, and what the error says


def refuse(words, path, **options):
    with pytest.raises(fs.ModelError, match=words) as caught:
        fs.load(path, **options)
    assert caught.value.remedy
    return str(caught.value)


def test_no_such_model(tmp_path):
    refuse("no such model", tmp_path / "nowhere")
    refuse("no such model", "./also/not/here")
    (tmp_path / "file.txt").write_text("x")
    refuse("not a GGUF file", tmp_path / "file.txt")


def test_a_hub_id_without_a_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refuse("the hub cannot be reached", "someone/some-model-that-is-not-here")


def test_missing_extra_and_misshaped_tensors(copy_of):
    path = copy_of("LLaDA")
    edit_weights(path, lambda w: w.pop("model.transformer.blocks.1.q_proj.weight"))
    text = refuse("1 tensors missing", path)
    assert "layers.1.self_attn.q_proj.weight" in text
    path = copy_of("Dream")
    edit_weights(path, lambda w: w.update(extra=torch.zeros(2)))
    refuse("1 tensors left over: extra", path)
    path = copy_of("Llama")
    edit_weights(path, lambda w: w.update({"model.norm.weight": torch.zeros(5)}))
    text = refuse("1 tensors mis-shaped", path)
    assert "(5,)" in text
    assert "(32,)" in text


def test_unknown_architecture(copy_of):
    path = copy_of("Llama")
    edit_config(path, architectures=["LLaDAVisionModelLM"], model_type="llada")
    assert "LLaDAModelLM" in refuse("unknown architecture 'LLaDAVisionModelLM'", path)
    edit_config(path, architectures=...)
    refuse("unknown architecture None", path)
    refuse("no family 'Mamba'", path, family="Mamba")


def test_where_the_mask_id_comes_from(copy_of):
    path = copy_of("LLaDA")
    edit_config(path, mask_token_id=200)
    refuse("two mask ids: config.json says 200, the tokenizer 259", path)
    assert fs.load(path, mask_id=200).mask_id == 200
    edit_config(path, mask_token_id=...)
    assert fs.load(path).mask_id == 259  # from the tokenizer
    (path / "tokenizer.json").unlink()
    (path / "tokenizer_config.json").unlink()
    refuse("no mask id: .* 126336 of published LLaDA .* 126464 tokens, this vocabulary 264", path)
    refuse("mask id 999 outside", path, mask_id=999)


def test_no_mask_id_at_all(copy_of):
    path = copy_of("Qwen2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    refuse("no mask id for a Qwen2 model", path, direction="bidirectional")


def test_nan_weights_are_refused(copy_of):
    path = copy_of("Qwen3")
    edit_weights(path, lambda w: w["model.norm.weight"].fill_(float("nan")))
    refuse("self-check 'no weight is NaN' failed.*model.norm.weight", path)
    assert fs.load(path, check=False).n_layers == 3


def test_damaged_weights_are_named(copy_of):
    path = copy_of("Llama")
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refuse("weights cannot be read", path)
    (path / "model.safetensors").unlink()
    refuse(r"no \*.safetensors file", path)
    (path / "pytorch_model.bin").write_bytes(b"x")
    refuse("pickled weights", path)
    (path / "config.json").write_text("{")
    refuse("is not JSON", path)
    (path / "config.json").unlink()
    refuse("has no config.json", path)


def test_a_damaged_tokenizer_is_named(copy_of):
    path = copy_of("Llama")
    (path / "tokenizer.json").write_text("{}")
    refuse("tokenizer cannot be read", path)


def test_variants_that_are_not_a_llama(copy_of):
    path = copy_of("LLaDA")
    edit_config(path, alibi=True)
    refuse("alibi = True", path)
    edit_config(path, alibi=False, d_model=...)
    refuse("no field 'd_model'", path)
    path = copy_of("Qwen2")
    edit_config(path, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    refuse("sliding-window", path)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Dream"])
@pytest.mark.parametrize("kind", ["sliding_attention", "chunked_attention"])
def test_layers_without_full_attention_are_refused_by_name(copy_of, family, kind):
    path = copy_of(family)
    edit_config(path, layer_types=["full_attention", kind, "full_attention"], sliding_window=4)
    refuse(f"layer_types of its config.json names '{kind}'", path)
    edit_config(path, layer_types=["full_attention"] * 3)
    assert fs.load(path, check=False).n_layers == 3


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_mask_that_is_an_end_token_is_refused(copy_of, name):
    file = copy_of("LLaDA") / name
    said = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**said, "eos_token_id": [tiny.END, tiny.MASK]}))
    refuse(f"mask id {tiny.MASK} is also an end token", file.parent)


def test_loading_options_that_cannot_be_are_refused(checkpoints):
    refuse("no dtype 'float7'", checkpoints["Llama"], dtype="float7")
    refuse("no device 'abacus'", checkpoints["Llama"], device="abacus")
    refuse("no direction 'up'", checkpoints["Llama"], direction="up")
    refuse("block", checkpoints["Llama"], direction="block-causal")
    refuse("block", checkpoints["Llama"], block=4)


# Each check can fail


def test_a_wrong_direction_is_noticed(checkpoints, models):
    net = models["LLaDA"].net
    model = fs.load(net, family="LLaDA", mask_id=259, check=False)

    def causal(call, proceed):
        call.causal = True
        return proceed(call)

    with (
        attention_hook.attach(net, causal),
        pytest.raises(fs.ModelError, match="'direction' failed.*no row sees"),
    ):
        selfcheck.check(model)
    llama = models["Llama"]

    def full(call, proceed):
        call.causal, call.mask = False, None
        return proceed(call)

    with (
        attention_hook.attach(llama.net, full),
        pytest.raises(fs.ModelError, match="a later token changes earlier"),
    ):
        selfcheck.check(llama)


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (10, "captured rows sum to one.*attention scores reach [456].*e.04, so that column sums"),
        (1e3, "captured rows sum to one.*attention scores reach .*e.12, so that rows of layer 0"),
        (1e6, "logits are finite.*every logit is 0, with weights of up to .*e.06 in float32"),
        (1e18, "logits are finite.*logits are NaN or infinite, with weights of up to"),
    ],
)
def test_weights_that_are_too_large_are_given_as_the_reason(copy_of, scale, words):
    path = copy_of("Llama")
    weights = load_file(path / "model.safetensors")
    scaled = {name: weight * scale for name, weight in weights.items()}
    save_file(scaled, path / "model.safetensors", metadata={"format": "pt"})
    refuse(words, path)
    fs.load(path, check=False)


def test_large_logits_alone_are_accepted(copy_of):
    path = copy_of("Llama")
    weights = load_file(path / "model.safetensors")
    weights["lm_head.weight"] *= 1e30
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    fs.load(path)


def test_padding_that_leaks_is_noticed(models):
    model = models["LLaDA"]

    def leak(call, proceed):
        call.mask = None
        return proceed(call)

    with (
        attention_hook.attach(model.net, leak),
        pytest.raises(fs.ModelError, match="left padding changes a logit"),
    ):
        selfcheck.check(model)


def test_a_wrong_capture_is_noticed(models, monkeypatch):
    from floatscope.attention.cpu import blocked

    right = blocked.sums

    def wrong(view, **options):
        found = right(view, **options)
        found["column_sum"].mul_(1.1)
        return found

    monkeypatch.setattr(blocked, "sums", wrong)
    with pytest.raises(fs.ModelError, match="'captured rows sum to one' failed"):
        selfcheck.check(models["Llama"])


def test_an_edit_without_effect_is_noticed(models):
    model = models["Llama"]
    weight = model.net.model.layers[0].self_attn.o_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    try:
        with pytest.raises(fs.ModelError, match="'an edit changes the logits' failed"):
            selfcheck.check(model)
    finally:
        with torch.no_grad():
            weight.copy_(kept)
