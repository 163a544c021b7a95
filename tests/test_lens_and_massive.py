"""Commitment, massive channels and drift that were planted are found; without them there is nothing."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.base import keep_for

STEPS, LAYERS, PROMPT, ANSWER, WIDTH = 4, 5, 6, 4, 256
SIZE = PROMPT + ANSWER
FINAL = np.arange(50, 50 + ANSWER)


def planted(extra=None, canvas=None, causal=False):
    attention = random_attention(np.random.default_rng(0), STEPS, LAYERS, 1, SIZE, causal=causal)
    trace = trace_of(
        attention, prompt_length=PROMPT, canvas=canvas, extra=extra or {}, causal=causal
    )
    trace.data.attrs["width"] = WIDTH
    return trace


def one_a_step():
    """Position t of the answer is revealed at step t."""
    canvas = np.tile(np.arange(10, 10 + SIZE), (STEPS + 1, 1))
    for t in range(STEPS + 1):
        canvas[t, PROMPT:] = np.where(np.arange(ANSWER) < t, FINAL, MASK)
    return canvas


def lens(layer_of, step_of, wrong=99):
    """Arg-max: the final token from a layer and from a step on, each by position; else `wrong`."""
    canvas = one_a_step()
    token = np.full((STEPS, LAYERS, SIZE), -1.0)
    for t in range(STEPS):
        for a in range(ANSWER):
            if canvas[t, PROMPT + a] == MASK:
                right = (np.arange(LAYERS) >= layer_of[a]) & (t >= step_of[a])
                token[t, :, PROMPT + a] = np.where(right, FINAL[a], wrong)
    known = token >= 0
    extra = {"lens_token": token, "lens_probability": np.where(known, 0.5, np.nan)}
    return planted(extra | {"lens_entropy": np.where(known, 1.5, np.nan)}, canvas)


def test_commitment_is_where_it_was_planted():
    layers, steps = [1, 2, 3, 4], [0, 0, 1, 3]
    found = fs.measures.LogitLens()(lens(layers, steps))
    assert float(found.commit_layer) == np.mean(layers)
    assert float(found.commit_step) == np.mean(steps)
    assert float(found.lead) == np.mean([0, 1, 1, 0])
    np.testing.assert_allclose(found.committed, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(found.entropy, 1.5)
    # 10 masked positions over the steps; position a is right at steps ≥ its own, up to its reveal.
    right = [(a, t) for a in range(ANSWER) for t in range(steps[a], a + 1)]
    by_layer = [sum(layers[a] <= layer for a, _ in right) / 10 for layer in range(LAYERS)]
    np.testing.assert_allclose(found.agree, by_layer)
    # A right token is one of four: drawn at random it is met a quarter of the time.
    np.testing.assert_allclose(found.agree_null, np.array(by_layer) / 4)


def test_a_token_that_does_not_stay_is_not_committed():
    trace = lens([1, 1, 1, 1], [0, 0, 0, 0])
    trace.data["lens_token"][3, 2, SIZE - 1] = 99  # lost in layer 2 at its reveal, back in 3
    trace.data["lens_token"][1, -1, SIZE - 1] = 99  # and at step 1, in the last layer
    found = fs.measures.LogitLens()(trace)
    assert float(found.commit_layer) == np.mean([1, 1, 1, 3])
    assert float(found.commit_step) == np.mean([0, 0, 0, 2])


def test_a_token_that_is_never_the_argmax_has_no_commitment():
    found = fs.measures.LogitLens()(lens([9] * 4, [0] * 4))
    assert np.isnan(found.commit_layer) and np.isnan(found.lead)
    np.testing.assert_allclose(found.committed, 0)
    np.testing.assert_allclose(found.agree, 0)


def test_always_the_same_token_is_chance():
    """An answer of one token: whatever predicts it agrees, and so does the null."""
    trace = lens([0] * 4, [0] * 4)
    trace.data["canvas"].values[trace.data["canvas"].values >= 50] = 50
    trace.data["lens_token"].values[trace.data["lens_token"].values >= 50] = 50
    found = fs.measures.LogitLens()(trace)
    np.testing.assert_allclose(found.agree, 1)
    np.testing.assert_allclose(found.agree_null, 1)


def test_positions_that_stay_masked_are_ignored():
    trace = lens([1] * 4, [0] * 4)
    trace.data["canvas"].values[-1, -1] = MASK
    trace.data["change"].values[-1, -1] = 0
    found = fs.measures.LogitLens()(trace)
    assert float(found.commit_layer) == 1
    np.testing.assert_allclose(found.agree[1:], 1)


def test_a_causal_model_predicts_each_position_once():
    arm = fs.load("pair/arm")
    found = fs.measures.LogitLens()(
        arm.trace("Where is Ada?", fs.Autoregressive(length=4), keep="lens")
    )
    assert np.isnan(found.lead) and np.isnan(found.commit_step)
    assert float(found.agree[-1]) == 1 and 0 <= float(found.commit_layer) < arm.n_layers
    assert float(found.committed[-1]) == 1


def residual(massive_at=None, by=1.0):
    """Normal channels, one of them grown at some positions: what a trace would keep of them."""
    x = np.abs(np.random.default_rng(1).normal(size=(STEPS, LAYERS, SIZE, WIDTH)))
    if massive_at is not None:
        x[:, 2, massive_at, 17] = by * np.median(x[:, 2, massive_at], -1)
    ratio = x.max(-1) / np.median(x, -1)
    return planted({"massive": ratio, "massive_channel": x.argmax(-1)})


def test_a_massive_channel_is_found_where_it_was_planted():
    found = fs.measures.MassiveActivations()(residual([0, 4], by=500))
    np.testing.assert_allclose(found.largest[2], 500, rtol=0.02)
    np.testing.assert_allclose(found["first"][2], 500, rtol=0.02)
    np.testing.assert_allclose(found["count"], [0, 0, 2, 0, 0])
    np.testing.assert_allclose(found.same_channel, [np.nan, np.nan, 1, np.nan, np.nan])
    assert float(found.typical[2]) < 10


def test_normal_channels_are_the_null():
    found = fs.measures.MassiveActivations()(residual())
    for name in ("largest", "first", "typical"):
        np.testing.assert_allclose(found[name], found[f"{name}_null"], rtol=0.25)
    np.testing.assert_allclose(found.typical.mean(), found.typical_null.mean(), rtol=0.05)
    np.testing.assert_allclose(found.count_null, 0, atol=1e-12)
    with pytest.raises(fs.UsageError, match="threshold = 1"):
        fs.measures.MassiveActivations(threshold=1)


def test_kv_drift_is_separated_by_what_happened_to_the_position():
    size = {"prompt": 0.01, "masked": 0.2, "revealed": 0.05, "changed": 0.8}
    canvas = one_a_step()
    drift = np.full((STEPS, LAYERS, SIZE), np.nan)
    for t in range(1, STEPS):
        for p in range(SIZE):
            if p < PROMPT:
                kind = "prompt"
            elif canvas[t, p] != canvas[t - 1, p]:
                kind = "changed"
            else:
                kind = "masked" if canvas[t, p] == MASK else "revealed"
            drift[t, :, p] = size[kind] * np.arange(1, LAYERS + 1)
    found = fs.measures.KVDrift()(planted({"key_drift": drift, "value_drift": 2 * drift}, canvas))
    for kind, one in size.items():
        np.testing.assert_allclose(found[f"key_{kind}"], one * np.arange(1, LAYERS + 1))
        np.testing.assert_allclose(found[f"value_{kind}"], 2 * one * np.arange(1, LAYERS + 1))


@pytest.mark.parametrize(
    ("measure", "keep"),
    [
        (fs.measures.LogitLens, "lens"),
        (fs.measures.MassiveActivations, "massive"),
        (fs.measures.KVDrift, "kv_drift"),
    ],
)
def test_missing_statistics_are_named_and_figures_are_drawn(measure, keep, llada, tmp_path):
    with pytest.raises(fs.TraceError, match=f"keep including '{keep}'"):
        measure()(planted())
    traces = llada.trace(["Hello", "Hi there"], fs.Confidence(length=4, steps=3), keep=keep)
    assert_drawn(measure()(traces).save_figure(tmp_path / "f.svg"))


def test_the_command_line_keeps_what_a_measure_needs(command_line, checkpoints):
    options = ["--prompt", "Hello", "--length", 4, "--steps", 2, "--measure", "logit-lens,kv-drift"]
    printed = command_line("trace", "--model", checkpoints["LLaDA"], *options).stdout
    assert "commit_layer" in printed and "value_changed" in printed


def test_a_worker_keeps_what_its_measures_need_and_nothing_else():
    assert keep_for([fs.measures.Absorption(), fs.measures.Drift()]) == {"head_mean"}
    assert keep_for([fs.measures.Absorption(), fs.measures.LogitLens()]) == {"head_mean", "lens"}
    assert keep_for([]) == frozenset()
