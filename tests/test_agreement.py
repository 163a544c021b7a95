"""Agreement between layers, and between prompts and their twins."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.agreement import Agreement, perturbation


def on(keys, size=20, share=0.8, steps=1, heads=2):
    """Every layer l has its sink at keys[l]."""
    a = np.full((steps, len(keys), heads, size, size), (1 - share) / (size - 1))
    for layer, key in enumerate(keys):
        a[:, layer, ..., key] = share
    return a


def test_equal_and_different_layers():
    found = Agreement()(trace_of(on([3, 3, 9, 9, 9, 9])))
    rest = 0.2 / 19
    apart = (2 * 0.8 * rest + 18 * rest**2) / (0.8**2 + 19 * rest**2)
    assert found.agreement.dims == ("layer", "other")
    np.testing.assert_allclose(found.agreement[0], [1, 1, apart, apart, apart, apart])
    np.testing.assert_allclose(found["shallow_deep"], apart)
    np.testing.assert_allclose(found["deep"], 1)
    sure = -(0.8 * np.log(0.8) + 0.2 * np.log(rest)) / np.log(20)
    np.testing.assert_allclose(found["deep_entropy"], sure)


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_random_attention_agrees_as_its_null(causal, size):
    rng = np.random.default_rng(size)
    traces = [
        trace_of(random_attention(rng, 1, 6, 1, size, causal=causal), causal=causal)
        for _ in range(5)
    ]
    found = Agreement()(traces)
    for name in ("shallow_deep", "deep"):
        assert found[f"{name}_lift"] == pytest.approx(1, abs=0.06)


def test_missing_statistics_are_named(llada):
    sampler = fs.Confidence(length=4)
    with pytest.raises(fs.TraceError, match="keep including 'entropy_mean'"):
        Agreement()(llada.trace("Hello there", sampler, keep=["mass"]))
    with pytest.raises(fs.TraceError, match="keep including 'head_mean'"):
        Agreement()(llada.trace("Hello there", sampler, keep=["entropy"]))
    assert np.isnan(Agreement()(trace_of(on([3])))["shallow_deep"])


def test_a_twin_with_the_same_and_with_another_anchor():
    a, b = trace_of(on([3, 3])), trace_of(on([3, 9]))
    found = perturbation([a, a], [b, b])
    assert found.measure.by == "key"
    assert found.perturbation.dims == ("layer", "head")
    np.testing.assert_allclose(found.perturbation[0], 1)
    assert (found.perturbation[1] < 0.1).all()
    assert (found.perturbation_null < 0.5).all()


def test_twins_of_other_lengths_are_aligned_by_region():
    names = ["question"] * 5, ["passage 1"] * 5, ["passage 2"] * 10, ["passage 2"] * 20
    a = trace_of(on([2, 2]), regions=[*names[0], *names[1], *names[2]])
    b = trace_of(on([2, 7], size=30), regions=[*names[0], *names[1], *names[3]])
    found = perturbation([a], [b])
    assert found.measure.by == "region"
    assert (found.perturbation[0] > 0.99).all()
    assert (found.perturbation[1] < 0.3).all()


def test_perturbation_refuses_unequal_twins():
    a = trace_of(on([3, 3]))
    with pytest.raises(fs.UsageError, match="different models.*do not correspond"):
        perturbation([a], [trace_of(on([3, 3]), model="other")])
    with pytest.raises(fs.UsageError, match="one twin per trace"):
        perturbation([a, a], [a])
    with pytest.raises(fs.UsageError, match="fewer than two regions"):
        perturbation([a], [trace_of(on([3, 3], size=30))])
    with pytest.raises(fs.UsageError, match="no traces"):
        perturbation([], [])


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    rng = np.random.default_rng(1)
    traces = [trace_of(random_attention(rng, 2, 6, 2, 16)) for _ in range(4)]
    found, twins = Agreement()(traces), perturbation(traces[:2], traces[2:])
    assert {"agreement", "shallow_deep", "deep", "deep_entropy"} == set(found.table()["value"])
    assert {"layer", "head", "mean", "null"} <= set(twins.table())
    for i, result in enumerate((found, twins)):
        for ending in ("svg", "pdf"):
            assert_drawn(result.save_figure(tmp_path / f"{i}.{ending}"))
