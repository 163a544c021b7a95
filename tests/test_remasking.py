"""Re-mask sensitivity against a plain loop in float64, and where nothing can depend on the token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pictures import assert_drawn
from tiny_models import DIFFUSION

import floatscope as fs
from floatscope.measures.library.remasking import remasked
from floatscope.models import attention_hook

SAMPLER = fs.Confidence(length=6, steps=3)


def slow(model, canvas, start, place):
    """By its definition: two forwards, one position at a time."""

    def predictions(ids):
        logits = model.logits(torch.from_numpy(ids).long()[None])[0].double()
        logits[:, model.mask_id] = -torch.inf
        return logits.softmax(-1).numpy()

    without = canvas.copy()
    without[place] = model.mask_id
    before, after = predictions(canvas), predictions(without)
    masked = [p for p in range(start, len(canvas)) if canvas[p] == model.mask_id]
    rows = [p - model.shift for p in masked]
    moved = np.mean([abs(after[r] - before[r]).sum() / 2 for r in rows])
    flipped = np.mean([after[r].argmax() != before[r].argmax() for r in rows])
    return moved, flipped, after[place - model.shift].argmax() == canvas[place]


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_every_effect_equals_the_plain_loop(models, family, batch_size):
    model = models[family]
    trace = model.trace("Hello there", SAMPLER, keep="mass")
    start = int(trace.info["prompt_length"])
    found = remasked(model, trace, batch_size=batch_size)
    assert found["moved"].notnull().sum("key").values.tolist() == [
        0,
        4,
        8,
    ]  # and as many of the prompt
    for step in (1, 2):
        canvas = trace.canvas.values[step]
        for place in np.flatnonzero(np.isfinite(found["moved"].sel(step=step))):
            one = found.sel(step=step, key=place)
            wanted = slow(model, canvas, start, place)
            np.testing.assert_allclose(one["moved"], wanted[0], rtol=1e-3, atol=1e-6)
            assert (float(one["flipped"]), bool(one["returned"])) == wanted[1:]
        revealed = np.flatnonzero(canvas[start:] != model.mask_id) + start
        there = np.isfinite(found["moved"].sel(step=step).values)
        assert np.flatnonzero(there[start:]).tolist() == (revealed - start).tolist()
        assert there[:start].sum() == len(revealed)


def test_without_attention_to_other_positions_nothing_moves(llada):
    """Every position sees itself alone: one token tells no other anything."""
    trace = llada.trace("Hello there", SAMPLER, keep="mass")

    def alone(call, proceed):
        size = call.key.shape[2]
        return proceed(replace(call, mask=torch.eye(size, dtype=torch.bool)[None, None]))

    usual = fs.measures.remasking(llada, trace)
    with attention_hook.attach(llada.net, alone):
        found = fs.measures.remasking(llada, trace)
    assert float(found.moved.max()) < 1e-6 and float(found.flipped.max()) == 0
    assert float(usual.moved.sel(step=1)) > 1e-3


def test_the_result_has_steps_nulls_and_a_figure(llada, tmp_path):
    traces = llada.trace(["Hello there", "Hi you", "Well"], SAMPLER, keep="mass")
    found = fs.measures.remasking(llada, traces, steps=[0, 2])
    assert found.n == 3 and found.data["step"].values.tolist() == [0, 2]
    assert np.isnan(found.moved.sel(step=0)) and np.isfinite(found.moved_null.sel(step=2))
    each = [remasked(llada, t, 2) for t in traces]
    by_hand = [float(e["moved"].where(e["region"] == "answer").mean()) for e in each]
    np.testing.assert_allclose(found.moved.sel(step=2), np.mean(by_hand), rtol=1e-6)
    assert_drawn(found.save_figure(tmp_path / "f.svg"))
    again = fs.measures.remasking(llada, traces, steps=[0, 2])
    assert again.data.equals(found.data)
    other = fs.measures.remasking(llada, traces, steps=[0, 2], seed=1)
    assert float(other.moved.sel(step=2)) == float(found.moved.sel(step=2))
    assert float(other.moved_null.sel(step=2)) != float(found.moved_null.sel(step=2))


def test_models_without_a_mask_and_missing_traces_are_refused(models, llada):
    arm = models["Llama"]
    causal = arm.trace("Hello", fs.Autoregressive(length=2), keep="mass")
    with pytest.raises(fs.UsageError, match="has no mask token"):
        fs.measures.remasking(arm, causal)
    with pytest.raises(fs.UsageError, match="expected a trace of"):
        fs.measures.remasking(llada, causal)
    with pytest.raises(fs.UsageError, match="no traces"):
        fs.measures.remasking(llada, [])
