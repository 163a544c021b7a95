"""Tokens as each step saw them: `token` over steps, `final_token` once; the answer's text, bare and raw."""

import numpy as np
import planted
import pytest
import xarray as xr
from tiny_models import CAUSAL, EVERY, FAMILIES, sampler_for

import floatscope as fs
from floatscope.scenes.words import words

PROMPT = "Hello, my friend"


def spelled(model, ids):
    """By the tokenizer itself, one token at a time, a NUL as \\x00; nothing where nothing stands yet."""
    text = {
        i: model.tokenizer.decode([i]).replace(chr(0), r"\x00")
        for i in set(ids.ravel().tolist()) - {-1}
    }
    return [[text.get(i, "") for i in row] for row in ids.tolist()]


@pytest.mark.parametrize("name", EVERY)
def test_every_sampler_tells_what_stood_where(llada, name):
    trace, plain = llada.trace(PROMPT, EVERY[name]), llada.generate(PROMPT, EVERY[name])
    canvas, data = plain.canvas, trace.data
    assert data["token"].dims == ("step", "key") and data["final_token"].dims == ("key",)
    assert data["token"].values.tolist() == spelled(llada, canvas[:-1])
    assert data["final_token"].values.tolist() == spelled(llada, canvas[-1:])[0]
    assert set(data["token"].values[data["masked"].values]) == {"<|mask|>"}
    assert trace.text == plain.text
    assert trace.raw_text == llada.tokenizer.decode(plain.answer_ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_tells_the_text_it_decoded(models, family):
    model = models[family]
    trace, plain = (call(PROMPT, sampler_for(model)) for call in (model.trace, model.generate))
    assert trace.text == plain.text
    assert trace.raw_text == model.tokenizer.decode(plain.answer_ids)
    assert trace.data["token"].values.tolist() == spelled(model, plain.canvas[:-1])


def test_a_nul_is_seen_wherever_tokens_are_shown(llada, tmp_path):
    """numpy's texts lose a NUL at their end: it is written out, in a trace, a stored one and a page."""
    nul = next(i for i in range(llada.vocab_size) if llada.tokenizer.decode([i]) == chr(0))
    trace = llada.trace([5, nul, 7], fs.Confidence(length=4, steps=2))
    for one in (trace, fs.Trace.load(trace.save(tmp_path / "t.zarr"))):
        assert (one.data["token"].values[:, 1] == r"\x00").all()
        assert one.data["final_token"].values[1] == r"\x00"
        assert r"\x00" in words(one, np.array([0, 1]))["vocabulary"]
    assert llada.pattern(trace, step=0, layer=0, head=0)["token"].values[1] == r"\x00"


@pytest.mark.parametrize("family", CAUSAL)
def test_a_causal_model_has_one_token_more_at_each_step(models, family):
    trace = models[family].trace([5, 6, 7], fs.Autoregressive(length=4, stop_at_eos=False))
    there = trace.canvas.values[:-1] >= 0
    assert there.sum(1).tolist() == [3, 4, 5, 6]
    assert (trace.data["token"].values[~there] == "").all()
    assert (trace.data["token_class"].values[~there] == "absent").all()


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_raw_text_goes_on_where_text_ends(checkpoints, family):
    """The third token of an answer is made the end of text: what follows it is not what one reads."""
    model = fs.load(checkpoints[family], check=False)
    once = (
        fs.samplers.Random(length=6, steps=6) if model.is_diffusion else fs.Autoregressive(length=6)
    )
    ids = model.generate(PROMPT, once).answer_ids
    end = next(i for i, token in enumerate(ids) if i and token not in ids[:i])
    model.end_ids, model.__dict__["special_ids"] = (ids[end],), model.special_ids | {ids[end]}
    trace, plain = model.trace(PROMPT, once), model.generate(PROMPT, once)
    assert trace.text == plain.text == model.tokenizer.decode(ids[:end])
    assert trace.raw_text == model.tokenizer.decode(plain.answer_ids)
    assert trace.raw_text.startswith(model.tokenizer.decode(ids[: end + 1]))


def test_masks_that_an_early_end_leaves_are_in_raw_text(checkpoints):
    model = fs.load(checkpoints["LLaDA"], check=False)
    sampler = fs.Confidence(length=8, steps=8, block_length=2)
    first = model.generate(PROMPT, sampler).answer_ids[0]
    model.end_ids = (first,)
    trace = model.trace(PROMPT, sampler)
    assert trace.info["ended"] == "eos" and trace.text == ""
    assert trace.raw_text.count("<|mask|>") == trace.canvas.values[-1].tolist().count(model.mask_id)
    assert trace.raw_text.endswith("<|mask|>" * 6)


def test_a_token_that_was_taken_back_stands_where_it_stood(llada, tmp_path):
    trace = llada.trace(PROMPT, fs.samplers.Remask(length=8, steps=16))
    path = trace.save(tmp_path / "t.zarr")
    for one in (trace, fs.Trace.load(path), fs.Trace.load(path, lazy=True)):
        tick, key = (int(i[0]) for i in np.nonzero(one.change.values == 2))
        before = one.data["token"].sel(step=tick, key=key).item()
        assert before == llada.token_texts([int(one.canvas[tick, key])])[0] != "<|mask|>"
        assert one.data["token"].sel(step=tick + 1, key=key) == "<|mask|>"


def test_tokens_of_the_kept_steps_alone(llada):
    sampler = fs.Confidence(length=6, steps=6)
    whole, some = llada.trace(PROMPT, sampler), llada.trace(PROMPT, sampler, steps=[1, 4])
    for name in ("token", "token_class", "masked"):
        assert (some.data[name].values == whole.data[name].sel(step=[1, 4]).values).all()


def test_a_trace_without_a_step_still_tells_its_final_tokens(llada, tmp_path):
    sampler = fs.samplers.Threshold(length=4, threshold=0.0)
    with pytest.warns(UserWarning, match="none of the chosen steps was reached"):
        trace = llada.trace(PROMPT, sampler, steps=[3])
    again = fs.Trace.load(trace.save(tmp_path / "t.zarr"))
    xr.testing.assert_identical(again.data, trace.data)
    assert again.data["token"].shape == (0, again.data.sizes["key"])
    assert "".join(again.data["final_token"].values[-4:]) == again.raw_text


def test_mass_by_token_is_mass_on_what_each_step_saw(llada):
    """What a measure does: select keys by their text. A mask is one thing, its later token another."""
    trace = llada.trace(PROMPT, fs.Confidence(length=6, steps=6))
    mass, ids = trace.mass, trace.canvas.values[:-1]
    last = str(trace.data["final_token"].values[-1])
    for text in ("<|mask|>", last):
        by_text = mass.where(trace.data["token"] == text).sum("key").values
        here = ids == (llada.mask_id if text == "<|mask|>" else trace.canvas.values[-1, -1])
        by_id = np.where(here[:, None, None], mass.values, 0).sum(-1)
        np.testing.assert_allclose(by_text, by_id, atol=1e-7)
        assert (by_text > 0).any()


def test_a_kind_of_key_is_named_by_the_token_of_the_step_it_looks_at():
    """Edited by the last step: the last kept forward saw a comma where a full stop ended up."""
    rng, size = np.random.default_rng(0), 8
    geometry = {name: rng.random((2, 1, 1, size)) for name in ("cosine", "key_norm", "query_norm")}
    classes = [["content"] * 7 + ["punctuation"]] * 2
    attention = planted.random_attention(rng, 2, 1, 1, size)
    trace = planted.trace_of(attention, classes=classes, tokens=[*"abcdefg", "."], extra=geometry)
    trace.data["token"].values[1, -1] = ","
    kinds = fs.measures.KindsOfKey().compute(trace)["kind"].values.tolist()
    assert "punctuation ," in kinds and "punctuation ." not in kinds


def test_a_cell_costs_the_same_however_long_its_text(llada, tmp_path):
    trace = llada.trace("Hello " * 20, fs.Confidence(length=8, steps=8))
    again = fs.Trace.load(trace.save(tmp_path / "t.zarr"))
    for cells in (one.data[name] for one in (trace, again) for name in ("token", "token_class")):
        assert cells.nbytes == 8 * cells.size  # a pointer
        texts = cells.values.ravel().tolist()
        assert len(set(map(id, texts))) == len(set(texts))
