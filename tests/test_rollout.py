"""Rollout against a whole matrix product, against its null on nothing, and as distinctness."""

import numpy as np
import pytest
import xarray as xr
from pictures import assert_drawn
from planted import MASK, random_attention, softmax, trace_of
from test_region_flow import PROMPT, REGIONS, SIZE

import floatscope as fs
from floatscope.measures.library.rollout import Rollout, distinctness


def traced(a, *, causal=False, regions=REGIONS, gold="passage 2"):
    size, prompt = len(regions), regions.index("answer")
    canvas = np.tile(np.arange(10, 10 + size), (len(a) + 1, 1))
    if not causal:
        canvas[0, prompt + 1 :] = MASK
    return trace_of(
        a, causal=causal, regions=regions, prompt_length=prompt, canvas=canvas, gold=gold
    )


def test_equals_the_product_of_whole_matrices():
    rng = np.random.default_rng(0)
    a = softmax(rng.normal(0, 2, (1, 4, 3, SIZE, SIZE)))
    whole = np.eye(SIZE)
    for layer in range(4):
        whole = (a[0, layer].mean(0) + np.eye(SIZE)) / 2 @ whole
    found = Rollout()(traced(a))
    answer = whole[PROMPT:].mean(0)
    for category, region in (("gold", "passage 2"), ("question", "question"), ("answer", "answer")):
        expected = answer[np.array(REGIONS) == region].sum()
        assert found["last"].sel(category=category).item() == pytest.approx(expected)
    np.testing.assert_allclose(found.rollout.isel(layer=-1), found["last"])
    assert float(found["last"].sum()) == pytest.approx(1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [32, 256, 1024])
def test_random_attention_gives_the_null(size, causal):
    rng = np.random.default_rng(size)
    part = size // 4
    regions = [n for n in ("template", "passage 1", "passage 2", "answer") for _ in range(part)]
    layers = 4
    traces = [
        traced(
            random_attention(rng, 1, layers, 2, size, causal=causal, spread=0.3),
            causal=causal,
            regions=regions,
        )
        for _ in range(3)
    ]
    found = Rollout()(traces)
    np.testing.assert_allclose(found.rollout, found.rollout_null, atol=0.02)
    np.testing.assert_allclose(found.distinctness, found.distinctness_null, atol=0.03)


def test_distinctness_by_hand():
    rows = xr.DataArray(
        [[[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [np.nan, np.nan]]]],
        dims=("step", "layer", "source", "target"),
    )
    assert distinctness(rows).item() == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_regions_that_keep_to_themselves_stay_distinct_and_the_null_does_not():
    same = np.array(REGIONS)[:, None] == np.array(REGIONS)[None, :]
    a = same / same.sum(1, keepdims=True)
    canvas = np.tile(np.arange(10, 10 + SIZE), (2, 1))
    a = np.broadcast_to(a, (1, 12, 1, SIZE, SIZE))
    trace = trace_of(a, regions=REGIONS, prompt_length=PROMPT, canvas=canvas)
    found = Rollout()(trace)
    np.testing.assert_allclose(found.distinctness, 1)
    np.testing.assert_allclose(found.distinctness_null, 0.5 ** np.arange(1, 13))


def test_a_causal_first_step_has_no_answer(llama):
    found = Rollout()(llama.trace("Hello there", fs.Autoregressive(length=4, stop_at_eos=False)))
    shares = found["last"].dropna("category")
    assert float(shares.sum()) == pytest.approx(1, abs=1e-5)
    assert set(shares["category"].values) >= {"answer", "rest"}


def test_result_has_a_table_and_a_figure_and_other_traces_are_refused(tmp_path, llada):
    rng = np.random.default_rng(1)
    found = Rollout()([traced(random_attention(rng, 1, 3, 2, SIZE)) for _ in range(3)])
    assert {"rollout", "last", "distinctness"} == set(found.table()["value"])
    assert not found.table()[found.table()["value"] == "distinctness"]["null"].isna().any()
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
    with pytest.raises(fs.TraceError, match="keep including 'rollout'"):
        Rollout()(llada.trace("Hello there", fs.Confidence(length=4), keep=["mass"]))
    with pytest.raises(fs.UsageError, match="no region 'nowhere'"):
        Rollout(source=("nowhere",))(traced(random_attention(rng, 1, 1, 1, SIZE)))
