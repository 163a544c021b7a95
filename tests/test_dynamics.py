"""Dynamics: rises that are known, none, and random attention."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.dynamics import Dynamics


def uniform(steps, layers, size):
    return np.full((steps, layers, 1, size, size), 1 / size)


def test_a_planted_rise_is_found():
    """Key 3, in the answer, rises by 0.3 from the first layer to the second; the others sink."""
    a = uniform(2, 3, 10)
    a[:, 1:] = (0.9 - 0.3) / 9
    a[:, 1:, ..., 3] = 0.4
    regions = ["a"] * 3 + ["b"] + ["a"] * 6
    found = Dynamics()(trace_of(a, regions=regions))
    np.testing.assert_allclose(found.layers, 0.3 / 10 / 2)  # ten keys, two transitions
    np.testing.assert_allclose(found.steps, 0, atol=1e-12)
    np.testing.assert_allclose(found.region_layers.sel(region=["a", "b"]), [0, 0.15], atol=1e-12)
    np.testing.assert_allclose(found.region_layers_null, 0.015)
    np.testing.assert_allclose(found.region_layers_lift.sel(region="b"), 10)


def test_the_null_by_hand():
    rng = np.random.default_rng(0)
    a = random_attention(rng, 1, 2, 2, 24)
    c = a.mean((2, 3))[0]
    by_hand = np.maximum(c[1][None] - c[0][:, None], 0).mean()
    np.testing.assert_allclose(Dynamics()(trace_of(a)).layers_null, by_hand)


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_random_attention_has_lift_one(causal, size):
    rng = np.random.default_rng(size)
    traces = [
        trace_of(random_attention(rng, 3, 3, 1, size, causal=causal), causal=causal)
        for _ in range(4)
    ]
    found = Dynamics()(traces)
    for name in ("layers_lift", "steps_lift"):
        np.testing.assert_allclose(found[name], 1, atol=0.25 if causal else 0.1)


def test_one_state_is_nan_and_keep_is_named(llada):
    found = Dynamics()(trace_of(uniform(1, 2, 12)))
    assert np.isnan(found.steps).all() and np.isnan(found.region_steps).all()
    assert not np.isnan(found.layers).any()
    with pytest.raises(fs.TraceError, match="keep including 'head_mean'"):
        Dynamics()(llada.trace("Hello there", fs.Confidence(length=4), keep=["entropy"]))


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    rng = np.random.default_rng(1)
    found = Dynamics()([trace_of(random_attention(rng, 2, 3, 2, 16)) for _ in range(3)])
    assert set(found.table()["value"]) == {"layers", "steps", "region_layers", "region_steps"}
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
