"""Extreme tokens with drains, peaks and gaps of known size, and without any."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, trace_of
from test_geometry import DIMS, KEY, SIZE, sink

import floatscope as fs
from floatscope.measures.library.extreme import ExtremeTokens


def planted(drain, peak, gap, attention=None):
    """Others of norms 1 … 3, whose median is 2, but for the anchor."""
    spread = np.insert(np.linspace(1, 3, SIZE - 1), KEY, 0)
    values, residual = np.tile(spread, (*DIMS[:3], 1)), np.tile(spread, (*DIMS[:2], 1))
    values[..., KEY], residual[..., KEY] = 2 * drain, 2 * peak
    score = np.tile(np.where(np.arange(SIZE) == KEY, 1 + gap, 1.0), (*DIMS[:3], 1))
    extra = {"value_norm": values, "residual_norm": residual, "score": score}
    return trace_of(sink() if attention is None else attention, extra=extra)


@pytest.mark.parametrize("rule", [fs.anchors.ZScore(), fs.anchors.ZScore(per_head=True)])
@pytest.mark.parametrize(("drain", "peak", "gap"), [(0.3, 5, 2.5), (1, 1, 0), (2, 0.5, -1)])
def test_planted_marks_have_their_size(rule, drain, peak, gap):
    found = ExtremeTokens(rule)(planted(drain, peak, gap))
    np.testing.assert_allclose(found.drain, drain, atol=1e-6)
    np.testing.assert_allclose(found.peak, peak, atol=1e-6)
    np.testing.assert_allclose(found.gap, gap, atol=1e-6)
    np.testing.assert_allclose(found.found, 1)


def test_ratios_of_one_half_and_two_average_to_one():
    trace = planted(1, 1, 0)
    trace.data["value_norm"][0, ..., KEY], trace.data["value_norm"][1, ..., KEY] = 1, 4
    np.testing.assert_allclose(ExtremeTokens()(trace).drain, 1, atol=1e-6)


def test_random_norms_have_ratio_one():
    rng = np.random.default_rng(2)
    traces = []
    for _ in range(40):
        extra = {
            "value_norm": np.exp(rng.normal(0, 0.4, (1, 3, 4, SIZE))),
            "residual_norm": np.exp(rng.normal(0, 0.4, (1, 3, SIZE))),
            "score": rng.normal(0, 1, (1, 3, 4, SIZE)),
        }
        traces.append(trace_of(random_attention(rng, 1, 3, 4, SIZE), extra=extra))
    found = ExtremeTokens()(traces)
    for name in ("drain", "peak", "gap"):
        wide = 1.6 * (found[f"{name}_high"] - found[f"{name}_low"]) / 2  # 9 intervals at once
        assert (abs(found[name] - found[f"{name}_null"]) < wide).all(), name


def test_without_anchors_it_is_nan():
    flat = np.full((*DIMS, SIZE), 1 / SIZE)
    found = ExtremeTokens(fs.anchors.Share(), fallback=False)(planted(0.3, 5, 2, attention=flat))
    for name in ("drain", "peak", "gap"):
        assert np.isnan(found[name]).all()
    np.testing.assert_allclose(found.found, 0)


def test_every_key_an_anchor_leaves_nothing_to_compare_with():
    found = ExtremeTokens(fs.anchors.Share(threshold=0.0))(planted(0.3, 5, 2))
    assert np.isnan(found.drain).all() and np.isnan(found.gap).all()


@pytest.mark.parametrize(
    ("gone", "keep"), [("value_norm",) * 2, ("residual_norm",) * 2, ("score", "qk")]
)
def test_missing_statistics_are_named(gone, keep):
    trace = fs.Trace(planted(1, 1, 0).data.drop_vars(gone))
    with pytest.raises(fs.TraceError, match=f"keep including '{keep}'"):
        ExtremeTokens()(trace)


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    found = ExtremeTokens()([planted(d, 4, 2) for d in (0.2, 0.3, 0.4)])
    table = found.table()
    row = table[(table["value"] == "drain") & (table["layer"] == 0)].iloc[0]
    assert row["mean"] == pytest.approx(0.3) and row["null"] == 1 and row["unit"] == "×"
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
