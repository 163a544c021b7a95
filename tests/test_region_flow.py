"""Region flow on planted passages, on nothing, causal and not, and where it does not apply."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.region_flow import RegionFlow
from floatscope.measures.regions import CATEGORIES, written

# 2 template, passages of 4, 2 and 3 tokens, 2 question, 3 answer
REGIONS = [
    *["template"] * 2,
    *["passage 1"] * 4,
    *["passage 2"] * 2,
    *["passage 3"] * 3,
    *["question"] * 2,
    *["answer"] * 3,
]
SIZE, PROMPT = 16, 13


def planted(weight, *, causal=False, gold="passage 2", regions=REGIONS, layers=2):
    """Attention in proportion to `weight` of the visible keys; one reveal a step, in order."""
    size = len(regions)
    prompt = regions.index("answer")
    a = np.broadcast_to(np.asarray(weight, float), (size, size))
    a = np.tril(a) if causal else a
    a = np.broadcast_to(a / a.sum(1, keepdims=True), (size - prompt, layers, 2, size, size))
    canvas = np.tile(np.arange(10, 10 + size), (size - prompt + 1, 1))
    if not causal:
        for t in range(size - prompt):
            canvas[t, prompt + t :] = MASK
    events = [(t, prompt + t, 10 + prompt + t) for t in range(size - prompt)]
    return trace_of(
        a,
        causal=causal,
        regions=regions,
        prompt_length=prompt,
        canvas=canvas,
        events=events,
        gold=gold,
        shift=int(causal),
    )


def double(region):
    return np.where(np.array(REGIONS) == region, 2.0, 1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", ["reveal", "answer"])
def test_twice_the_mass_per_gold_token(rows, causal):
    """2 per gold token; over all passages (4 + 2·2 + 3)/9 = 11/9 per token: 18/11."""
    found = RegionFlow(rows=rows)([planted(double("passage 2"), causal=causal)] * 2)
    np.testing.assert_allclose(found.gold_lift, 18 / 11, rtol=1e-6)
    np.testing.assert_allclose(found.gold_lift_null, 1)
    if not causal:
        flow = dict(zip(CATEGORIES, found.flow.isel(layer=0).values, strict=True))
        assert flow["gold"] == pytest.approx(4 / 18)
        assert flow["other passages"] == pytest.approx(7 / 18)
        assert flow["answer"] == pytest.approx(3 / 18)
        assert np.isnan(flow["instruction"]) and np.isnan(flow["passages"])
        assert np.nansum(list(flow.values())) == pytest.approx(1)
        np.testing.assert_allclose(found.passage_null.isel(layer=0), [4 / 16, 2 / 16, 3 / 16])
        np.testing.assert_allclose(found.passage_lift.isel(layer=0), np.array([1, 2, 1]) * 16 / 18)


def test_gold_lift_is_below_one_if_another_passage_is_planted():
    found = RegionFlow()(planted(double("passage 3")))
    assert (found.gold_lift < 1).all()
    assert RegionFlow()(planted(np.ones(SIZE))).gold_lift.values == pytest.approx(1)


def test_reveal_rows_of_a_causal_model_are_the_rows_before():
    """Row 12 (the prompt's last) predicted the first token: it sees 13 keys, none of the answer."""
    found = RegionFlow()(planted(np.ones(SIZE), causal=True))
    expected = np.mean([2 / 13, 2 / 14, 2 / 15])
    np.testing.assert_allclose(found.flow.sel(category="gold"), expected)
    np.testing.assert_allclose(found.flow_null.sel(category="gold"), expected)
    np.testing.assert_allclose(found.flow.sel(category="answer"), np.mean([0, 1 / 14, 2 / 15]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", ["reveal", "answer"])
@pytest.mark.parametrize("size", [32, 256, 1024])
def test_random_attention_has_lift_one(size, rows, causal):
    rng = np.random.default_rng(size)
    part = (size - 8) // 4
    regions = [n for n in ("template", "passage 1", "passage 2", "question") for _ in range(part)]
    regions += ["answer"] * (size - len(regions))
    prompt = 4 * part
    traces = [
        trace_of(
            random_attention(rng, 1, 2, 2, size, causal=causal, spread=0.3),
            causal=causal,
            regions=regions,
            prompt_length=prompt,
            events=[(0, prompt + i, 10 + prompt + i) for i in range(4)],
            gold="passage 1",
            shift=int(causal),
        )
        for _ in range(4 if size > 256 else 12)
    ]
    found = RegionFlow(rows=rows)(traces)
    margin = 3 * (found.gold_lift_high - found.gold_lift_low) + 1e-3
    assert (abs(found.gold_lift - 1) < margin).all()
    assert (abs(found.flow_lift.dropna("category") - 1) < 0.15).all()


def test_what_fills_the_answer_after_its_end_does_not_count():
    trace = planted(np.ones(SIZE))
    canvas = trace.data["canvas"].copy()
    canvas[-1, 13:] = [50, 7, 7]
    np.testing.assert_array_equal(
        written(fs.Trace(trace.data.assign(canvas=canvas))), [True, True, False]
    )


def test_without_gold_or_with_one_passage_the_lift_is_nan_and_noted():
    found = RegionFlow()(planted(np.ones(SIZE), gold=""))
    assert found.gold_lift.isnull().all()
    assert found.flow.sel(category="gold").isnull().all()
    np.testing.assert_allclose(found.flow.sel(category="passages"), 9 / 16)
    assert found.data.attrs["gold"].startswith("0 of 1 traces")
    assert found.plot() is not None
    one = ["passage 1"] * 4 + ["question"] * 2 + ["answer"] * 2
    assert RegionFlow()(planted(np.ones(8), gold="passage 1", regions=one)).gold_lift.isnull().all()


def test_different_numbers_of_passages_share_categories_only(tmp_path):
    two = ["passage 1"] * 4 + ["passage 2"] * 2 + ["question"] * 2 + ["answer"] * 2
    found = RegionFlow()([planted(np.ones(SIZE)), planted(np.ones(10), regions=two)])
    assert found.flow.sizes["category"] == len(CATEGORIES)
    assert "passage" not in found.values
    assert "[2, 3] passages" in found.data.attrs["passage"]
    assert "passage" not in set(found.table()["value"])
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    found = RegionFlow()([planted(double("passage 2"))] * 3)
    table = found.table()
    assert {"flow", "gold_lift", "passage"} == set(table["value"])
    assert {"category", "place", "null", "lift", "low", "high", "unit", "n"} <= set(table)
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))


def test_traces_without_rows_or_flow_and_bad_rows_are_refused(llada):
    trace = llada.trace("Hello there", fs.Confidence(length=4), keep=["mass"])
    with pytest.raises(fs.TraceError, match="keep including 'rows'"):
        RegionFlow()(trace)
    with pytest.raises(fs.TraceError, match="keep including 'flow'"):
        RegionFlow(rows="answer")(trace)
    with pytest.raises(fs.UsageError, match="'reveal' or 'answer'"):
        RegionFlow(rows="all")
    with pytest.raises(fs.UsageError, match="no region 'passage 9'"):
        RegionFlow(rows="answer", source=("passage 9",))(planted(np.ones(SIZE)))
