"""compare: aligned by depth and by name, refused with the reason, paired and not."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, trace_of
from test_absorption import sink
from test_region_flow import SIZE, double, planted
from test_retrieval import copying, traced

import floatscope as fs
from floatscope.measures.comparing import compare
from floatscope.measures.library.region_flow import RegionFlow
from floatscope.measures.library.retrieval import RetrievalHeads


def _traces(shares, layers=3, model="a", size=40, start=0):
    """The share of the sink grows with depth from 0 to `share`."""
    found = []
    for number, share in enumerate(shares):
        a = sink(size, 7, 0.5, layers=layers)
        for layer, s in enumerate(np.linspace(0.3, share, layers)):
            a[:, layer] = sink(size, 7, s, layers=1)[:, 0]
        tokens = [f"{word}{number + start}" for word in range(size)]  # another prompt each
        found.append(trace_of(a, model=model, tokens=tokens))
    return found


def sinks(shares, **options):
    return fs.measures.Absorption()(_traces(shares, **options))


def test_side_by_side_with_the_difference():
    a, b = sinks([0.6, 0.7, 0.8]), sinks([0.4, 0.5, 0.6], model="b")
    found = compare(a, b, paired=True)
    assert list(found["model"].values) == ["a", "b"]
    np.testing.assert_allclose(found["top"].sel(model="a"), a["top"])
    np.testing.assert_allclose(found["top_null"].sel(model="b"), 1 / 40)
    np.testing.assert_allclose(found["top_difference"].sel(versus="b"), [0, 0.1, 0.2], atol=1e-9)
    last = found.data.sel(versus="b", depth=1)
    # Every pair differs by 0.2, exactly, which does not tell how far off the next pair could be.
    assert -1 <= last["top_difference_low"] < -0.3 and 0.7 < last["top_difference_high"] <= 1
    apart = compare(a, b).data.sel(versus="b", depth=1)
    assert float(apart["top_difference_low"]) < 0.1 < 0.3 < float(apart["top_difference_high"])
    assert "independent" in compare(a, b).data.attrs["interval"]


def test_pairs_are_found_by_prompt_and_not_by_place():
    """Other order, and a prompt more: the same differences as of those two in order."""
    a, b = sinks([0.6, 0.9]), sinks([0.5, 0.5], model="b")
    turned = fs.measures.Absorption()(
        [*reversed(_traces([0.5, 0.5], model="b")), *_traces([0.1], model="b", start=2)]
    )
    want, found = compare(a, b, paired=True), compare(a, turned, paired=True)
    for end in ("", "_low", "_high"):
        name = f"top_difference{end}"
        np.testing.assert_allclose(found[name], want[name], atol=1e-12)
    assert found.data.attrs["n"] == [2, 2]
    assert "1 of 3 examples of b" in found.data.attrs["left_out"]


def test_different_layer_counts_are_aligned_by_depth():
    """Linear in depth, so interpolation onto the smaller model's layers is exact."""
    found = compare(sinks([0.6, 0.7], layers=3), sinks([0.6, 0.7], layers=6, model="b"))
    np.testing.assert_allclose(found["depth"], [0, 0.5, 1])
    np.testing.assert_allclose(found["top_difference"].sel(versus="b"), 0, atol=1e-9)


def test_more_than_two_and_labels():
    found = compare(*(sinks([0.5, 0.6], model="a") for _ in range(3)))
    assert list(found["model"].values) == ["a", "a (2)", "a (3)"]
    assert found["top_difference"].sizes["versus"] == 2
    named = compare(sinks([0.5, 0.6]), sinks([0.5, 0.6]), labels=["clean", "noisy"])
    assert list(named["versus"].values) == ["noisy"]


def test_names_without_a_counterpart_are_left_out_and_listed():
    three = RegionFlow()([planted(double("passage 2"))] * 2)
    two_regions = ["passage 1"] * 4 + ["passage 2"] * 2 + ["question"] * 2 + ["answer"] * 2
    two = RegionFlow()([planted(np.ones(10), regions=two_regions)] * 2)
    found = compare(three, two)
    assert list(found["place"].values) == [1, 2]
    assert "passage: place 3" in found.data.attrs["left_out"]
    np.testing.assert_allclose(found["gold_lift_difference"], 18 / 11 - 1)


def test_heads_of_different_models_do_not_correspond():
    a = RetrievalHeads()([traced(copying([8, 10, 5]))] * 2)
    b = RetrievalHeads()([traced(copying([8, 10, 5]), model="b")] * 2)
    assert "head" not in compare(a, b)["copy"].dims
    left = compare(a, b).data.attrs["left_out"]
    assert (
        "heads (of different models" in left and "heads: not in all results, or not a mean" in left
    )
    assert "head" in compare(a, a)["copy"].dims


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    found = compare(sinks([0.6, 0.7]), sinks([0.4, 0.5], model="b"))
    table = found.table()
    assert {"measure", "model", "value", "depth", "mean", "null", "low", "high"} <= set(table)
    assert {"top", "top_difference"} <= set(table["value"])
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
    axes = compare(*[RegionFlow()([planted(np.ones(SIZE))] * 2)] * 2).plot("flow").axes
    shown = [axis.get_ylim() for axis in axes if axis.axison]
    assert len(set(shown)) == 1  # one scale
    assert "left out: nothing" in repr(found)


def test_results_that_cannot_be_compared_are_refused():
    a, b = sinks([0.6, 0.7]), sinks([0.4, 0.5], model="b")
    rng = np.random.default_rng(0)
    trace = trace_of(random_attention(rng, 1, 3, 1, 40))
    with pytest.raises(fs.UsageError, match="different measures: Absorption and RegionFlow"):
        compare(a, RegionFlow()(planted(np.ones(SIZE))))
    with pytest.raises(fs.UsageError, match="configured differently: rule"):
        compare(a, fs.measures.Absorption(rule=fs.anchors.Robust())(trace))
    with pytest.raises(fs.UsageError, match="of 2 and 2 no id occurs in all lists"):
        compare(a, sinks([0.5, 0.6], start=2), paired=True)
    with pytest.raises(fs.UsageError, match="occurs 2 times in list 1"):
        compare(
            fs.measures.Absorption()([trace] * 2), fs.measures.Absorption()([trace]), paired=True
        )
    nameless = sinks([0.4, 0.5], model="b")
    nameless.examples = nameless.examples.drop_vars("example")
    with pytest.raises(fs.UsageError, match="a result of b has none"):
        compare(a, nameless, paired=True)
    with pytest.raises(fs.UsageError, match="two or more"):
        compare(a)
    with pytest.raises(fs.UsageError, match="1 different labels for 2"):
        compare(a, b, labels=["x", "x"])
    with pytest.raises(fs.UsageError, match="one layer has no relative depth"):
        compare(a, sinks([0.5, 0.6], layers=1))
    nine = [f"passage {i}" for i in range(1, 10)] + ["question", "answer", "answer"]
    many = RegionFlow()([planted(np.ones(12), regions=nine)] * 2)
    with pytest.raises(fs.UsageError, match="nothing to draw of passage"):
        compare(many, many).plot("passage")
