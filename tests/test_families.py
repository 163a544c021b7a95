"""Families beyond the five: logits and statistics against a forward from the published files alone."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from published import FORWARDS, active_block, full, in_blocks, read
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import floatscope as fs
from floatscope.models import FAMILIES as REGISTERED
from floatscope.models import tiny

SHAPE = tiny.Shape(layers=2)
PROMPT = fs.Prompt.rag("Q?", ["A.", "B."], gold=0, instruction="Say.")
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
ENCODERS = ("BERT", "RoBERTa", "ALBERT", "DistilBERT", "ModernBERT")
SAMPLER = fs.Confidence(length=6, steps=3)
# Models that decode in blocks, of 4 here; LLaDA 2's are 32, and shorter ones are asked for.
BLOCK = 4
SAID = {
    "SDAR": {"block": BLOCK},
    "SDAR-MoE": {"block": BLOCK},
    "LLaDA2": {"direction": "block-causal", "block": BLOCK},
}
FROM_START = ("SDAR", "SDAR-MoE", "LLaDA2", "Fast-dLLM")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: tiny.write(name, folder / name, SHAPE) for name in FORWARDS}


@pytest.fixture(scope="module")
def loaded(written):
    return {
        name: fs.load(path, dtype="float64", **SAID.get(name, {})) for name, path in written.items()
    }


def sees(model, n, start=None):
    """Who sees whom among n positions, with the open block at `start`: stated apart from the package."""
    name = model.family.name
    if name in FROM_START:
        return in_blocks(n, BLOCK)
    if name == "Nemotron":
        return active_block(n, BLOCK, n if start is None else start)
    return full(n)


@pytest.mark.parametrize("family", FORWARDS)
def test_logits_equal_the_published_arithmetic(written, loaded, family):
    config, weights = read(written[family])
    ids = torch.randint(0, 256, (14,), generator=torch.Generator().manual_seed(2))
    done = FORWARDS[family](weights, config, ids, sees(loaded[family], len(ids)))
    found = loaded[family].logits(ids[None])[0]
    torch.testing.assert_close(found, done.logits, rtol=1e-5, atol=1e-5)


PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_logits.json").read_text())


@pytest.mark.parametrize("family", PUBLISHED["families"])
def test_logits_equal_those_of_the_published_code(loaded, family):
    """Numbers that the published modelling code gave on the same checkpoint, once, elsewhere."""
    ids = torch.arange(12) * 37 % 256
    wanted = torch.tensor(PUBLISHED["families"][family]["logits"], dtype=torch.float64)
    found = loaded[family].logits(ids[None])[0, [0, 5, 11], :6]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)


def close(found, wanted, unit=1.0, err=""):
    np.testing.assert_allclose(
        found, np.asarray(wanted), rtol=CLOSE["rtol"], atol=CLOSE["atol"] * unit, err_msg=err
    )


@pytest.mark.parametrize("family", [*FORWARDS, "A2D-Qwen3 in blocks"])
def test_every_statistic_equals_the_materialised_one(written, loaded, family):
    """Means, sums and norms of whole matrices, for each step, layer and head of a decoding."""
    family, _, blocks = family.partition(" in ")
    said = {"direction": "block-causal", "block": BLOCK}
    model = fs.load(written[family], dtype="float64", **said) if blocks else loaded[family]
    config, weights = read(written[family])
    keep = [n for n in fs.statistics.STATISTICS if n != "experts" or model.n_experts]
    trace = model.trace(PROMPT, SAMPLER, keep=keep, groups="regions")
    before = None
    for t in range(trace.n_steps):
        canvas = trace.canvas.values[t]
        ids = torch.from_numpy(canvas[canvas >= 0]).long()
        seen = sees(model, len(ids), int(trace.data["block"].values[t, 0]))
        if blocks:  # counted from the answer, to both sides
            place = (torch.arange(len(ids)) - int(trace.info["prompt_length"])) // BLOCK
            seen = place[:, None] >= place
        done = FORWARDS[family](weights, config, ids, seen)
        compare(trace, t, done, seen.numpy(), before)
        compare_lens(model, trace, t, done)
        before = done


@pytest.mark.parametrize("family", ["LLaDA2", "SDAR", "SDAR-MoE", "Fast-dLLM", "Nemotron"])
def test_cached_blocks_give_what_uncached_ones_give(loaded, family):
    """Tokens and every statistic, alone and in a padded batch."""
    model, sampler = loaded[family], fs.Confidence(length=10)
    keep = [n for n in fs.statistics.STATISTICS if n != "experts" or model.n_experts]
    for prompts in (["Hello you"], ["Hi", "Something longer"]):
        cached = model.trace(prompts, sampler, keep=keep, cache="exact")
        plain = model.trace(prompts, sampler, keep=keep, cache=None)
        for one, other in zip(cached, plain, strict=True):
            np.testing.assert_array_equal(one.canvas, other.canvas)
            assert set(one.data) == set(other.data)
            for name in set(one.data) - {"row_key", "key_drift", "value_drift"}:
                np.testing.assert_allclose(
                    one.data[name], other.data[name], atol=1e-5, rtol=1e-5, err_msg=name
                )


def test_experts_of_rows_that_a_cache_leaves_out_are_not_there(loaded):
    """dKV computes single rows: what was routed stands at its position, and nowhere else."""
    model, sampler = loaded["LLaDA-MoE"], fs.Confidence(length=8, block_length=4)
    keep = ["mass", "experts", "residual_norm"]
    trace = model.trace("Hello you", sampler, keep=keep, cache="dkv")
    routed = trace.experts["expert"].sel(layer=1).isel(choice=0).values >= 0
    np.testing.assert_array_equal(routed, np.isfinite(trace.residual_norm.sel(layer=1)))
    assert 0 < routed[2].sum() < routed[0].sum()


def compare(trace, t, done, seen, before):
    """`seen`: who sees whom, in all layers or in each."""
    n = seen.shape[-1]
    there = {"key": slice(n), "query": slice(n)}
    trace = fs.Trace(trace.data.isel({d: s for d, s in there.items() if d in trace.data.dims}))
    region = trace.data["region"].values
    masked = trace.data["masked"].values[t]
    labels = np.where(region == "answer", np.where(masked, "masked", "revealed"), region)
    targets = trace.data["target"].values
    rolled = np.stack([labels == name for name in targets], 1).astype(float)
    by_layer = np.broadcast_to(seen, (len(done.layers), n, n))
    for number, (layer, seen) in enumerate(zip(done.layers, by_layer, strict=True)):
        at = {"step": t, "layer": number}
        a = layer.weights.numpy()
        close(trace.mass.isel(at), a.sum(1) / n)
        close(trace.received.isel(at), a.sum(1) / seen.sum(0))
        nats = -np.where(a > 0, a * np.log(np.where(a > 0, a, 1)), 0).sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            close(trace.entropy.isel(at), nats / np.log(seen.sum(1)))
        rolled = (a.mean(0) @ rolled + rolled) / 2
        for group in trace.data["group"].values:
            rows = labels == group
            if rows.any():
                close(trace.mass_from(str(group)).isel(at), a[:, rows].mean(1))
                flow = np.stack([a[:, rows][:, :, labels == x].sum(-1).mean(1) for x in targets])
                close(trace.flow.isel(at).sel(source=group).transpose("target", "head"), flow)
                close(trace.rollout.isel(at).sel(source=group), rolled[rows].mean(0))
        group = len(layer.q) // len(layer.k)
        k, v = (one.repeat_interleave(group, 0) for one in (layer.k, layer.v))
        weight = seen / seen.sum(0)
        pairs = (layer.q @ k.mT).numpy()
        norms = (layer.q.norm(dim=-1)[..., None] * k.norm(dim=-1)[:, None]).numpy()
        close(trace.score.isel(at), (pairs * weight).sum(1), norms.max())
        close(trace.cosine.isel(at), (pairs / norms * weight).sum(1))
        close(trace.key_norm.isel(at), k.norm(dim=-1))
        close(trace.query_norm.isel(at), layer.q.norm(dim=-1).numpy() @ weight)
        written = torch.einsum("mhd,hnd->hnm", layer.out, v).norm(dim=-1)
        close(trace.value_norm.isel(at), written)
        close(trace.residual_norm.isel(at), layer.x.norm(dim=-1))
        size = layer.x.abs().numpy()
        close(trace.massive.isel(at), size.max(-1) / np.median(size, -1), 10)
        if before is not None:
            for name in ("key", "value"):
                old, new = (getattr(one.layers[number], name[0]) for one in (before, done))
                turned = 1 - torch.cosine_similarity(old, new[:, : old.shape[1]], dim=-1).mean(0)
                found = trace.data[f"{name}_drift"].isel(at)
                close(found[: len(turned)], turned)
                assert np.isnan(found[len(turned) :]).all()
        if "expert" in trace.data:
            compare_experts(trace.experts.isel(at), layer)
        compare_rows(trace, t, number, a, labels)


def compare_experts(found, layer):
    if layer.experts is None:  # a dense layer among others
        assert (found["expert"].values == -1).all()
        assert np.isnan(found["weight"].values).all()
        return
    np.testing.assert_array_equal(found["expert"].values.T, layer.experts)
    close(found["weight"].values.T, layer.shares)


def compare_rows(trace, t, number, a, labels):
    events = np.flatnonzero(trace.data["event_step"].values == t)
    assert len(events)
    for event in events:
        row = a[:, int(trace.data["event_position"].values[event]) - int(trace.info["shift"])]
        one = trace.rows.isel(event=event, layer=number)
        key = one["row_key"].values.astype(int)  # −1: it sees no more
        close(np.where(key < 0, 0, np.take_along_axis(row, key, 1)), one["row_weight"])
        close(one["row_weight"], np.sort(row, 1)[:, ::-1][:, : one.sizes["rank"]])
        for place, target in enumerate(trace.data["target"].values):
            close(one["row_flow"].values[:, place], row[:, labels == target].sum(1))


def compare_lens(model, trace, t, done):
    masked = np.flatnonzero(trace.data["masked"].values[t])
    for number, logits in enumerate(done.read):
        score = logits.clone()
        score[:, model.mask_id] = -torch.inf
        p = score.softmax(-1).numpy()[masked - model.shift]
        one = trace.lens.isel(step=t, layer=number, key=masked)
        np.testing.assert_array_equal(one["token"], p.argmax(-1))
        np.testing.assert_allclose(one["probability"], p.max(-1), rtol=1e-4)
        nats = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
        np.testing.assert_allclose(one["entropy"], nats, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FORWARDS)
def test_tracing_and_padding_change_no_token(loaded, family):
    """A batch of unequal prompts, traced: the tokens and statistics of each alone, untraced."""
    model, prompts = loaded[family], ["Hello", "Something longer"]
    for one, trace in zip(prompts, model.trace(prompts, SAMPLER), strict=True):
        np.testing.assert_array_equal(trace.canvas, model.generate(one, SAMPLER).canvas)
        alone = model.trace(one, SAMPLER)
        for name in ("column_sum", "entropy", "rollout", "score", "value_norm"):
            np.testing.assert_allclose(
                trace.data[name], alone.data[name], atol=1e-5, rtol=1e-5, err_msg=name
            )


@pytest.mark.parametrize("family", FORWARDS)
def test_errors_name_what_is_wrong_with_a_checkpoint(written, tmp_path, family):
    path = shutil.copytree(written[family], tmp_path / "copy")
    with pytest.raises(fs.ModelError, match=r"mask id 999999 outside the vocabulary .*mask_id="):
        fs.load(path, mask_id=999_999, **SAID.get(family, {}))
    weights = load_file(path / "model.safetensors")
    inside = [key for key in weights if ".0." in key or ".1." in key]
    experts = [key for key in inside if "experts.1.gate" in key]
    gone = experts[0] if experts else next(key for key in inside if "norm" not in key.lower())
    weights.pop(gone)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(fs.ModelError, match="tensors (missing|mis-shaped): .*download is incomp"):
        fs.load(path, **SAID.get(family, {}))


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_equals_the_transformers_network(written, loaded, family):
    """The same numbers as the class that transformers itself would load."""
    import transformers

    stock = loaded[family].net.__class__.__mro__[2]
    assert stock.__module__.startswith("transformers.models")
    net = getattr(transformers, stock.__name__).from_pretrained(
        written[family], dtype=torch.float64, local_files_only=True
    )
    ids = torch.randint(2, 256, (2, 20), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        logits = net.eval()(input_ids=ids).logits
    torch.testing.assert_close(loaded[family].logits(ids), logits, rtol=1e-9, atol=1e-9)


def test_heads_for_other_tasks_are_ignored_and_unknown_tensors_refused(written, tmp_path):
    path = shutil.copytree(written["BERT"], tmp_path / "copy")
    weights = load_file(path / "model.safetensors")
    weights["bert.pooler.dense.weight"] = torch.zeros(32, 32)
    weights["cls.seq_relationship.bias"] = torch.zeros(2)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    assert fs.load(path, check=False).fingerprint == fs.load(written["BERT"]).fingerprint
    weights["bert.encoder.adapter.weight"] = torch.zeros(2)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(fs.ModelError, match="1 tensors left over: bert.encoder.adapter"):
        fs.load(path)


def test_layers_that_share_weights_are_told_apart(loaded):
    """ALBERT: one tensor, as many modules as layers; what is done to one layer is done to it alone."""
    model = loaded["ALBERT"]
    blocks = model.net.blocks
    assert blocks[0] is not blocks[1]
    mine, other = (list(block.parameters()) for block in blocks)
    assert all(a is b for a, b in zip(mine, other, strict=True))
    trace = model.trace("Hello", SAMPLER, keep="residual_norm")
    assert not np.allclose(trace.residual_norm.isel(layer=0), trace.residual_norm.isel(layer=1))
    with fs.interventions.AblateHeads([(1, 0)])(model):
        changed = model.trace("Hello", SAMPLER, keep="mass")
    plain = model.trace("Hello", SAMPLER, keep="mass")
    np.testing.assert_array_equal(changed.mass.isel(step=0), plain.mass.isel(step=0))


def test_experts_are_refused_where_there_are_none(loaded):
    with pytest.raises(fs.UsageError, match="has no experts .*Leave 'experts' out"):
        loaded["A2D-Qwen3"].trace("Hello", SAMPLER, keep="experts")
    with pytest.raises(
        fs.UsageError, match=r"has no experts in these layers.*Choose from layers 1"
    ):
        loaded["LLaDA-MoE"].trace("Hello", SAMPLER, keep="experts", layers=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("qk_layernorm", False), ("moe_router_score_function", "sigmoid"), ("clip_qkv", 8.0)],
)
def test_a_variant_that_is_another_network_is_refused(written, tmp_path, field, value):
    path = shutil.copytree(written["LLaDA-MoE"], tmp_path / "copy")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(fs.ModelError, match=f"{field} = .*LLaDA-MoE-7B-A1B"):
        fs.load(path)


def test_settings_missing_from_a_checkpoint_are_requested(written):
    with pytest.raises(fs.ModelError, match=r"block None.*needs block=N.*model card"):
        fs.load(written["SDAR"])
    with pytest.raises(
        fs.ModelError, match="two block sizes: Nemotron has 4, but 8 is given.*Leave"
    ):
        fs.load(written["Nemotron"], block=8)
    with pytest.raises(fs.ModelError, match="two block sizes: LLaDA2 has 32, but 4 is given"):
        fs.load(written["LLaDA2"], block=4)
    with pytest.raises(
        fs.ModelError, match="direction='block-causal' says that it decodes in blocks"
    ):
        fs.load(written["A2D-Qwen3"], block=32)
    assert fs.load(written["LLaDA2"]).block == 32
    spoken = fs.load(f"{written['A2D-Qwen3']},direction=block-causal,block=4")
    assert (spoken.block, spoken.grid) == (4, "padded")


def test_the_same_weights_read_left_to_right(written):
    """Nemotron's own control: one checkpoint, two ways of decoding."""
    model = fs.load(written["Nemotron"], direction="causal", shift=1)
    assert model.mask_id is None
    trace = model.trace("Hello", fs.Autoregressive(length=3, stop_at_eos=False))
    assert np.isfinite(trace.mass.isel(step=2, layer=0)).sum("key").values.max() == 7


def test_every_family_names_its_test_reference():
    ours = [REGISTERED[name] for name in REGISTERED.builtin]
    for family in ours:
        assert family.tested and family.examples, family.name
        assert list(family.about) == ["weights from", "decodes", "KV cache", "compared with"]
    assert {*FORWARDS, *FAMILIES} == {family.name for family in ours}  # none is left out of both


def test_what_an_encoder_puts_first_leads_a_prompt(loaded):
    """[CLS], as its own tokenizer would; not the separator that it would put last."""
    vocab = {token: i for i, token in enumerate(["[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [("[CLS]", 1), ("[SEP]", 2)]
    words.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=around)
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", **named)
    model = fs.load(loaded["BERT"].net, tokenizer=tokenizer, family="BERT", check=False)
    assert model.mask_id == 3
    assert model.encode("hello hello").ids == (1, 4, 4)
    assert model.encode("hello").regions == ("template", "prompt")
