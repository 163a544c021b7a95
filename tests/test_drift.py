"""Drift and Dispersion: anchors that move, that stay, and that are not there."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.dispersion import Dispersion
from floatscope.measures.library.drift import Drift
from floatscope.stats.chance import Chance, exact_jaccard


def at(keys, size=40, share=0.6):
    """(T, L, 1, S, S): state (t, l) has its sink at keys[t][l]."""
    keys = np.asarray(keys)
    a = np.full((*keys.shape, 1, size, size), (1 - share) / (size - 1))
    for i in np.ndindex(keys.shape):
        a[i][..., keys[i]] = share
    return a


def revealing(steps, size=40, start=20):
    """One answer position a step, left to right."""
    canvas = np.tile(np.arange(10, 10 + size), (steps + 1, 1))
    for t in range(steps + 1):
        canvas[t, start + t :] = MASK
    return canvas


def test_an_anchor_that_moves_one_position_a_step():
    keys = [[20 + t, 7] for t in range(8)]
    found = Drift()(trace_of(at(keys), prompt_length=20, canvas=revealing(8)))
    np.testing.assert_allclose(found.persistence, [0, 1])
    np.testing.assert_allclose(found.floating, [1, 0])
    np.testing.assert_allclose(found.stay, [0, 1])
    np.testing.assert_allclose(found.displacement, [1, 0])
    np.testing.assert_allclose(found.lifetime, [1, 8])
    np.testing.assert_allclose(found.centroid_variance, [np.arange(8).var(), 0])
    np.testing.assert_allclose(found.frontier, [1, np.nan])
    np.testing.assert_allclose(found.persistence_null, 1 / 40)
    np.testing.assert_allclose(found.stay_null, 1 / 40)
    uniform = abs(np.subtract.outer(np.arange(40), np.arange(40))).mean()
    np.testing.assert_allclose(found.displacement_null, uniform)


def test_intervals_of_lifetimes_end_at_the_number_of_states():
    traces = [trace_of(at([[7 if t < last else 9] for t in range(8)])) for last in (8, 8, 8, 2)]
    found = Drift()(traces)
    assert found.lifetime.item() < found.lifetime_high.item() <= 8
    assert found.displacement_low.item() >= 0


def test_drift_over_layers_is_computed_for_each_step():
    found = Drift(over="layer")(trace_of(at([[3, 5, 7, 9], [4, 4, 4, 4]])))
    assert found.persistence.dims == ("step",)
    np.testing.assert_allclose(found.persistence, [0, 1])
    np.testing.assert_allclose(found.displacement, [2, 0])
    np.testing.assert_allclose(found.lifetime, [1, 4])
    assert np.isnan(found.frontier).all()


def test_absent_keys_are_ignored():
    """An autoregressive trace grows: NaN keys are neither anchors nor the strongest."""
    trace = trace_of(at([[5]] * 4), causal=True)
    data = trace.data.copy(deep=True)
    for t in range(4):
        for name in ("column_sum", "visible", "null"):
            data[name][{"step": t, "key": slice(36 + t, None)}] = np.nan
    found = Drift()(fs.Trace(data))
    assert found.stay.item() == 1 and found.persistence.item() == 1


@pytest.mark.parametrize(("a", "b", "n"), [(1, 1, 5), (3, 4, 12), (2, 9, 10), (0, 3, 8), (6, 6, 6)])
def test_chance_is_exact(a, b, n):
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(4000):
        x, y = (set(rng.choice(n, k, replace=False).tolist()) for k in (a, b))
        drawn.append(len(x & y) / len(x | y))
    assert exact_jaccard(a, b, n) == pytest.approx(np.mean(drawn), abs=0.015)
    assert np.isnan(exact_jaccard(0, 0, n))


@pytest.mark.parametrize("over", ["step", "layer"])
@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_random_attention_shows_no_drift(causal, size, over):
    rng = np.random.default_rng(size)
    shape = (4, 1) if over == "step" else (1, 4)
    few = 16 if size > 100 else 60
    traces = [
        trace_of(random_attention(rng, *shape, 1, size, causal=causal), causal=causal)
        for _ in range(few)
    ]
    found = Drift(rule=fs.anchors.ZScore(2), over=over)(traces)
    # Exact where keys are exchangeable; where they are not it is a simulation of means and variances
    # alone, right to about a tenth, and rare long jumps make the displacement's interval too narrow.
    slack = 0.05 if causal else 0.01
    for name in ("persistence", "stay") if causal else ("persistence", "stay", "displacement"):
        value, null = float(found[name].squeeze()), float(found[f"{name}_null"].squeeze())
        wide = float((found[f"{name}_high"] - found[f"{name}_low"]).squeeze())
        assert abs(value - null) < 0.75 * wide + slack, (name, value, null, wide)


def test_causal_chance_of_staying_is_high_for_early_keys():
    """Early keys come back by chance: exchangeable keys would understate it."""
    visible = np.arange(64, 0, -1.0)
    quiet = Chance(
        visible, np.array([[(1 / np.arange(j + 1, 65)).sum() / (64 - j) for j in range(64)]])
    )
    assert quiet.stay > 0.9
    assert quiet.pair(2, 2)[0] > 0.9


def test_dispersion_of_one_place_and_of_many():
    rng = np.random.default_rng(0)
    traces = [trace_of(at([[0, k, i % 2 * 39]])) for i, k in enumerate(rng.permutation(40)[:30])]
    found = Dispersion()(traces)
    assert found.dispersion[0] == 0 and found["first"][0] == 1
    assert found.dispersion[1] == pytest.approx(float(found.dispersion_null), abs=0.08)
    # Two places, each half of the time; Miller and Madow add (2 − 1) / (2 · 30).
    assert found.dispersion[2] == pytest.approx((np.log(2) + 1 / 60) / np.log(10))
    assert found.dispersion_low[2] < np.log(2) / np.log(10) < found.dispersion_high[2]
    assert found.dispersion_high[0] > 0.2  # 30 examples do not rule out that it moves
    assert (found.dispersion_low <= found.dispersion).all()
    assert (found.dispersion <= found.dispersion_high).all()
    assert set(found.table()["value"]) == {"position", "first", "dispersion"}
    assert np.isnan(Dispersion()(traces[0]).dispersion).all()


def test_one_step_has_no_drift():
    found = Drift()(trace_of(at([[3, 5]])))
    assert np.isnan(found.persistence).all() and np.isnan(found.displacement).all()


@pytest.mark.parametrize("measure", [Drift(), Drift(over="layer"), Dispersion()])
def test_result_has_a_tidy_table_and_a_figure(measure, tmp_path):
    found = measure([trace_of(at([[3, 5, 6], [4, 5, k]])) for k in (1, 2, 3)])
    table = found.table()
    assert {"value", "mean", "null", "low", "high", "unit", "n"} <= set(table)
    assert (table["unit"] != "").all()
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))


def test_traces_without_mass_and_bad_axes_are_refused(llada):
    trace = llada.trace("Hello there", fs.Confidence(length=4), keep=["entropy"])
    for measure in (Drift(), Dispersion()):
        with pytest.raises(fs.TraceError, match="keep including 'head_mean'"):
            measure(trace)
    with pytest.raises(fs.UsageError, match='over="step"'):
        Drift(over="head")
    with pytest.raises(fs.UsageError, match="0 ≤ at ≤ 1"):
        Dispersion(at=2)


def test_the_heat_map_marks_what_was_planted(tmp_path):
    """An anchor that moves one key a step stands on the diagonal of the picture."""
    from floatscope import heatmap
    from floatscope.plots import save

    size, steps = 30, 6
    a = np.full((steps, 2, 2, size, size), 0.3 / (size - 1))
    for t in range(steps):
        a[t, ..., 4 + t] = 0.7
    trace = trace_of(a)
    figure = heatmap(trace, layer=1)
    axis = figure.axes[0]
    anchors = next(line for line in axis.lines if line.get_label() == "anchor")
    assert anchors.get_xdata().tolist() == [4 + t for t in range(steps)]
    assert anchors.get_ydata().tolist() == list(range(steps))
    for ending in ("svg", "pdf"):
        assert_drawn(save(figure, tmp_path / f"h.{ending}"))
    heatmap(trace, lift=True)
    with pytest.raises(fs.UsageError, match="no layer 9"):
        heatmap(trace, layer=9)
