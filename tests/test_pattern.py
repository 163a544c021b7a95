"""Whole patterns, computed again from a trace: equal to eager attention, and to the sums of the trace."""

import numpy as np
import pytest
import torch
from figure_sizes import texts_outside
from test_trace_exact import PROMPT, TOLERANCE, eager
from tiny_models import FAMILIES, sampler_for

import floatscope as fs
from floatscope.models import attention_hook


@pytest.mark.parametrize("family", FAMILIES)
def test_pattern_equals_eager_attention_and_sums_to_the_trace(models, family):
    model = models[family]
    trace = model.trace(PROMPT, sampler_for(model, length=6, steps=3), keep=["mass", "entropy"])
    for step in (0, trace.n_steps - 1):
        canvas = trace.canvas.values[step]
        ids = torch.from_numpy(canvas[canvas >= 0]).long()[None]
        found = model.pattern(trace, step=step)
        assert found.dims == ("layer", "head", "query", "key")
        wanted = torch.stack([a[0] for a in eager(model, ids)[0]]).double().numpy()
        np.testing.assert_allclose(found, wanted, **TOLERANCE)
        mass = trace.mass.isel(step=step, key=slice(0, ids.shape[1]))
        np.testing.assert_allclose(found.mean("query"), mass, **TOLERANCE)
        tokens = trace.data["token"].values[step, : ids.shape[1]]
        assert found["token"].values.tolist() == tokens.tolist()


def test_pattern_equals_a_float64_softmax(models):
    model, seen = models["Dream"], {}
    trace = model.trace("Hello there", sampler_for(model))

    def look(call, proceed):
        seen[call.layer] = (call.query.double(), call.key.double(), call.scale)
        return proceed(call)

    with attention_hook.attach(model.net, look):
        found = model.pattern(trace, step=2, layer=1, head=[0, 3])
    q, k, scale = seen[1]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    wanted = (q @ k.mT * scale).softmax(-1)[0, [0, 3]].numpy()
    assert found.dims == ("head", "query", "key")
    np.testing.assert_allclose(found, wanted, **TOLERANCE)
    assert bool(found["masked"].any()) and not bool(found["masked"][:5].any())


def test_block_model_pattern_is_block_causal(checkpoints):
    blocks = {"direction": "block-causal", "block": 4, "mask_id": 259, "shift": 0}
    model = fs.load(checkpoints["Qwen2"], **blocks)
    trace = model.trace("Hello there", fs.Confidence(length=8, steps=4), keep="mass")
    found = model.pattern(
        trace, step=1
    )  # 11 tokens: two whole blocks, then three of the prompt and one
    assert found.sizes["key"] == 16
    mass = trace.mass.isel(step=1, key=slice(16))
    np.testing.assert_allclose(found.mean("query"), mass, **TOLERANCE)
    later = found["key"] // 4 > found["query"] // 4
    assert float(found.where(later).max()) == 0


def test_pattern_of_a_batched_trace_has_no_padding(models):
    model = models["Llama"]
    traces = model.trace(["Hi", "Something rather longer"], sampler_for(model))
    for trace in traces:
        found = model.pattern(trace, step=3, layer=0, head=1)
        size = int((trace.canvas.values[3] >= 0).sum())
        assert found.shape == (size, size)
        mass = trace.mass.sel(step=3, layer=0, head=1).values[:size]
        np.testing.assert_allclose(found.mean("query"), mass, rtol=1e-4, atol=1e-5)
        assert np.triu(found.values, 1).max() == 0


def test_pattern_of_a_mismatched_trace_is_refused(models, llada):
    trace = llada.trace("Hello", fs.Confidence(length=4, steps=2), keep="mass")
    with pytest.raises(fs.UsageError, match="expected a trace of .*Load the model that was traced"):
        models["Dream"].pattern(trace, step=0)
    with pytest.raises(fs.UsageError, match="no step 2: there are 2"):
        llada.pattern(trace, step=2)
    with fs.interventions.MaskTokens(positions=0)(llada):
        edited = llada.trace("Hello", fs.Confidence(length=4, steps=2), keep="mass")
        with pytest.raises(fs.UsageError, match="active on this model"):
            llada.pattern(trace, step=0)
    with pytest.raises(
        fs.UsageError, match=r"decoded under MaskTokens.*Trace without the intervention"
    ):
        llada.pattern(edited, step=0)


def test_pattern_above_the_memory_limit_is_refused(llada, monkeypatch):
    monkeypatch.setattr("floatscope.recording.pattern._LIMIT", 1000)
    trace = llada.trace("Hello", fs.Confidence(length=4, steps=2), keep="mass")
    with pytest.raises(fs.UsageError, match="Choose fewer layers or heads"):
        llada.pattern(trace, step=0)


def test_a_pattern_is_drawn_with_its_tokens(llada, monkeypatch):
    monkeypatch.setattr(llada, "name", "tiny")
    trace = llada.trace("Hello there", fs.Confidence(length=4, steps=2), keep="mass")
    axis = trace.show(1, 2, 3, model=llada)
    found = llada.pattern(trace, step=1, layer=2, head=3)
    np.testing.assert_array_equal(np.asarray(axis.images[0].get_array()), found.values)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("key", "query")
    assert axis.get_title(loc="left").endswith("step 1, layer 2, head 3")
    for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert "H" in [t.get_text() for t in ticks]
    assert not texts_outside(axis.figure)
    mean = trace.show(1, 2, model=llada, width=3.3)
    every = llada.pattern(trace, step=1, layer=2).mean("head")
    np.testing.assert_allclose(np.asarray(mean.images[0].get_array()), every.values)
    assert "mean over heads" in mean.get_title(loc="left").replace("\n", " ")
    assert mean.figure.get_figwidth() == 3.3 and not texts_outside(mean.figure)


def test_pattern_converts_for_bertviz_and_circuitsvis(llada):
    trace = llada.trace("Hello", fs.Confidence(length=4, steps=2), keep="mass")
    whole = llada.pattern(trace, step=0)
    for_bertviz = fs.to_bertviz(whole)
    assert len(for_bertviz["attention"]) == llada.n_layers
    size = len(for_bertviz["tokens"])
    stacked = torch.stack([a.squeeze(0) for a in for_bertviz["attention"]])  # what bertviz does
    assert stacked.shape == (llada.n_layers, llada.n_heads, size, size)
    np.testing.assert_array_equal(stacked[2], whole.sel(layer=2))
    one = fs.to_circuitsvis(whole.sel(layer=2))
    assert one["attention"].shape == (llada.n_heads, size, size)
    np.testing.assert_array_equal(one["attention"], whole.sel(layer=2))
    assert one["tokens"] == for_bertviz["tokens"] == [str(t) for t in whole["token"].values]
    assert fs.to_circuitsvis(whole.sel(layer=2, head=1))["attention"].shape == (1, size, size)
    assert fs.to_bertviz(whole.sel(layer=2, head=1))["attention"][0].shape == (1, 1, size, size)
    with pytest.raises(fs.UsageError, match="CircuitsVis shows one layer"):
        fs.to_circuitsvis(whole)
