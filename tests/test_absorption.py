"""Absorption and the anchor rules on planted sinks, on nothing, and where published rules break."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, softmax, trace_of

import floatscope as fs


def sink(size, key, share, *, steps=2, layers=3, heads=2, where=(slice(None), slice(None))):
    """Uniform attention, but `share` on one key in chosen layers and heads."""
    a = np.full((steps, layers, heads, size, size), 1 / size)
    planted = np.full(size, (1 - share) / (size - 1))
    planted[key] = share
    a[:, where[0], where[1]] = planted
    return a


@pytest.mark.parametrize(
    "rule",
    [
        fs.anchors.ZScore(3),
        fs.anchors.Excess(),
        fs.anchors.Robust(),
        fs.anchors.Share(threshold=0.3),
    ],
)
def test_a_planted_sink_is_found_only_where_it_was_planted(rule):
    trace = trace_of(sink(40, 7, 0.6, where=(1, slice(None))))
    found = fs.measures.Absorption(rule=rule)(trace)
    np.testing.assert_allclose(found.absorption, [0, 0.6, 0], atol=1e-9)
    np.testing.assert_allclose(found.anchors, [0, 1, 0])
    np.testing.assert_allclose(found.absorption_null, [0, 1 / 40, 0])
    np.testing.assert_allclose(found.top, [1 / 40, 0.6, 1 / 40])
    np.testing.assert_allclose(found.first, [1 / 40, 0.4 / 39, 1 / 40], atol=1e-9)
    assert rule(trace).sel(layer=1).values[:, 7].all()


def test_per_head_finds_what_the_mean_hides():
    """One head of eight: the mean over heads stays below the threshold, the head does not."""
    a = sink(40, 7, 0.6, heads=8, where=(slice(None), 3))
    assert not fs.anchors.Share(threshold=0.3)(trace_of(a)).any()
    per_head = fs.anchors.Share(threshold=0.3, per_head=True)(trace_of(a))
    assert per_head.sel(head=3, key=7).all()
    assert int(per_head.sum()) == 2 * 3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [32, 128, 512, 1024])
def test_random_attention_has_lift_one(causal, size):
    rng = np.random.default_rng(size)
    traces = [
        trace_of(random_attention(rng, 1, 2, 2, size, causal=causal, spread=0.3), causal=causal)
        for _ in range(6 if size > 256 else 12)
    ]
    found = fs.measures.Absorption()(traces)
    margin = 4 * (found.first_high - found.first_low) + 1e-3
    assert (abs(found.first - found.first_null) < margin).all()
    assert (abs(found.first_lift - 1) < 0.25).all()


def test_causal_position_zero_has_lift_one_under_uniform_attention():
    """Uniform causal attention: H_S/S on position 0, and a lift of exactly one."""
    size = 64
    a = np.tril(np.ones((size, size)))
    a = np.broadcast_to(a / a.sum(1, keepdims=True), (1, 1, 1, size, size))
    found = fs.measures.Absorption(rule=fs.anchors.Robust())(trace_of(a, causal=True))
    assert found["first"].item() == pytest.approx(sum(1 / i for i in range(1, 65)) / 64)
    assert found["first_lift"].item() == pytest.approx(1)


def test_defect_excess_on_means_can_never_fire():
    """As printed: c_j > mean of the others + 3. A mean of attention never exceeds 1."""
    trace = trace_of(sink(40, 7, 0.999))
    received = trace.received.mean("head")
    others = (received.sum("key") - received) / 39
    assert not (received > others + 3).any()
    assert fs.anchors.Excess()(trace).sel(key=7).all()


def test_defect_zscore_has_a_cap():
    """At most S/(1 + k²) keys: ten equal sinks among 60 keys are none, and Robust finds all ten."""
    a = np.full((1, 1, 1, 60, 60), 0.1 / 50)
    a[..., :10] = 0.09
    trace = trace_of(a)
    assert int(fs.anchors.ZScore(3)(trace).sum()) == 0
    assert int(fs.anchors.Robust()(trace).sum()) == 10


def test_zscore_warns_where_it_cannot_fire():
    trace = trace_of(sink(10, 3, 0.99))
    with pytest.warns(UserWarning, match="finds no anchor among 10 keys"):
        assert not fs.anchors.ZScore(3)(trace).any()


def test_published_formulas_by_hand():
    """ZScore, Excess and Share written out again, from the papers, on random attention."""
    rng = np.random.default_rng(0)
    a = softmax(rng.normal(0, 1, (2, 2, 2, 50, 50)) + 4 * (np.arange(50) == 9))
    c = a.mean((2, 3))  # head mean of the mean over queries
    trace = trace_of(a)
    z = c > c.mean(-1, keepdims=True) + 3 * c.std(-1, keepdims=True)
    np.testing.assert_array_equal(fs.anchors.ZScore(3)(trace), z)
    s = 50 * c
    e = s > (s.sum(-1, keepdims=True) - s) / 49 + 3
    np.testing.assert_array_equal(fs.anchors.Excess()(trace), e)
    np.testing.assert_array_equal(fs.anchors.Share(threshold=0.3)(trace), c > 0.3)


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    traces = [trace_of(sink(40, 7, share)) for share in (0.5, 0.6, 0.7)]
    found = fs.measures.Absorption()(traces)
    table = found.table()
    assert {
        "model",
        "measure",
        "value",
        "layer",
        "mean",
        "null",
        "lift",
        "low",
        "high",
        "unit",
        "n",
    } <= set(table)
    row = table[(table["value"] == "absorption") & (table["layer"] == 0)].iloc[0]
    assert row["mean"] == pytest.approx(0.6)
    assert row["low"] < 0.6 < row["high"]
    assert row["lift"] == pytest.approx(0.6 * 40)
    for ending in ("svg", "pdf", "png"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
    assert "n = 3" in repr(found)


def test_one_example_has_no_interval():
    found = fs.measures.Absorption()(trace_of(sink(40, 7, 0.5)))
    assert np.isnan(found["absorption_low"]).all()
    assert "one example: no interval" in repr(found)


def test_traces_without_mass_or_of_two_models_are_refused(llada):
    with pytest.raises(fs.TraceError, match="keep including 'head_mean'"):
        fs.measures.Absorption()(
            llada.trace("Hello there", fs.Confidence(length=4), keep=["entropy"])
        )
    with pytest.raises(fs.UsageError, match="different models"):
        fs.measures.Absorption()(
            [trace_of(sink(40, 7, 0.5)), trace_of(sink(40, 7, 0.5), model="other")]
        )
