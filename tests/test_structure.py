"""Structure: classes with known mass a token, a known index and a known trend."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.structure import SHOWN, Structure

SIZE = 40
KINDS = np.array(["punctuation"] * 10 + ["content"] * 30)


def weighted(weight, kinds=KINDS, steps=2, heads=2):
    """Attention in proportion to `weight` (layer, key), the same for every query."""
    weight = np.asarray(weight, float)
    row = weight / weight.sum(-1, keepdims=True)
    shape = (steps, len(row), heads, SIZE, SIZE)
    a = np.broadcast_to(row[None, :, None, None, :], shape)
    return trace_of(a, classes=np.tile(kinds, (steps, 1)))


def test_twice_the_mass_a_token_is_a_ratio_of_two():
    found = Structure()(weighted(np.where(KINDS == "punctuation", 2.0, 1.0)[None].repeat(3, 0)))
    lift = found.class_lift
    # 10 keys of weight 2 and 30 of weight 1: 50 in all, over 40 keys.
    np.testing.assert_allclose(lift.sel(token_class="punctuation"), 2 * 40 / 50, rtol=1e-6)
    np.testing.assert_allclose(lift.sel(token_class="content"), 40 / 50, rtol=1e-6)
    np.testing.assert_allclose(found["index"], 2, rtol=1e-6)
    assert found["trend"].item() == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(found.class_mass.sel(token_class="punctuation"), 0.4, rtol=1e-6)
    np.testing.assert_allclose(found.class_mass_null.sel(token_class="punctuation"), 0.25)


def test_a_class_with_twice_the_mass_of_chance_has_lift_two():
    weight = np.where(KINDS == "punctuation", 0.5 / 10, 0.5 / 30)[None]
    found = Structure()(weighted(weight))
    np.testing.assert_allclose(found.class_lift.sel(token_class="punctuation"), 2, rtol=1e-6)


def test_absent_classes_are_nan_and_one_layer_has_no_trend():
    found = Structure()(weighted(np.ones((1, SIZE))))
    absent = [c for c in SHOWN if c not in KINDS]
    assert np.isnan(found.class_lift.sel(token_class=absent)).all()
    assert np.isnan(found["trend"].item())
    no_content = Structure()(weighted(np.ones((2, SIZE)), kinds=np.full(SIZE, "special")))
    assert np.isnan(no_content["index"]).all() and np.isnan(no_content["trend"].item())
    np.testing.assert_allclose(no_content.class_lift.sel(token_class="special"), 1, rtol=1e-6)


def test_the_trend_is_the_planted_slope():
    """An index of 4 that falls to 1 over five layers, evenly in logarithms."""
    index = 4.0 ** np.linspace(1, 0, 5)
    found = Structure()(weighted(np.where(KINDS == "punctuation", index[:, None], 1.0)))
    np.testing.assert_allclose(found["index"], index, rtol=1e-6)
    assert found["trend"].item() == pytest.approx(-np.log(4))


def test_masks_have_a_lift_but_do_not_enter_the_index():
    kinds = KINDS.copy()
    kinds[-10:] = "mask"
    found = Structure()(weighted(np.where(kinds == "mask", 9.0, 1.0)[None].repeat(2, 0), kinds))
    np.testing.assert_allclose(found["index"], 1, rtol=1e-6)
    assert (found.class_lift.sel(token_class="mask") > 2).all()


def test_the_first_key_can_be_left_out():
    kinds = KINDS.copy()
    kinds[0] = "special"
    weight = np.ones((2, SIZE))
    weight[:, 0] = 30
    trace = weighted(weight, kinds)
    assert (Structure()(trace)["index"] > 2).all()
    np.testing.assert_allclose(Structure(skip=1)(trace)["index"], 1, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_random_attention_has_lift_one_and_no_trend(causal):
    rng = np.random.default_rng(3)
    traces = []
    for _ in range(40):
        kinds = rng.choice(SHOWN, SIZE)[None]
        a = random_attention(rng, 1, 4, 2, SIZE, causal=causal)
        traces.append(trace_of(a, causal=causal, classes=kinds))
    found = Structure()(traces)
    for name in ("class_lift", "index", "trend"):
        wide = 2 * (found[f"{name}_high"] - found[f"{name}_low"]) / 2  # 33 intervals at once
        assert (abs(found[name] - found[f"{name}_null"]) < wide).all(), name


def test_missing_statistics_are_named():
    trace = fs.Trace(weighted(np.ones((2, SIZE))).data.drop_vars("column_sum"))
    with pytest.raises(fs.TraceError, match="keep including 'head_mean'"):
        Structure()(trace)


def three(layers):
    ratios = (1.5, 2.0, 2.5)
    weights = [np.where(KINDS == "punctuation", r, 1.0)[None].repeat(layers, 0) for r in ratios]
    return Structure()([weighted(w) for w in weights])


@pytest.mark.parametrize("layers", [1, 3, 20])
def test_result_has_a_figure(tmp_path, layers):
    for ending in ("svg", "pdf"):
        assert_drawn(three(layers).save_figure(tmp_path / f"f.{ending}"))


def test_result_has_a_tidy_table():
    table = three(3).table()
    row = table[(table["value"] == "index") & (table["layer"] == 1)].iloc[0]
    assert row["mean"] == pytest.approx(2) and row["null"] == 1 and row["low"] < 2 < row["high"]
    assert set(table["token_class"].dropna()) == set(SHOWN)
    assert (table["value"] == "trend").sum() == 1
