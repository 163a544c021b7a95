"""Reuse, coverage and overlap: brute force from whole attention, planted patterns, chance."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.coverage import Coverage
from floatscope.measures.library.overlap import Overlap
from floatscope.measures.library.reuse import Reuse
from floatscope.models import tiny

BUDGETS = (0.1, 0.3)
PROMPT = "The cat sat on the mat, and the dog lay by the door."


def masked_rows(model, trace, step):
    """The whole attention (layer, head, row, key) of the rows that decide, computed anew."""
    pattern = model.pattern(trace, step=step).transpose("layer", "head", "query", "key").values
    if trace.info["direction"] == "causal":
        return pattern[:, :, -1:] if step else pattern
    masked = trace.data["masked"].transpose("step", "key").values[step][: pattern.shape[2]]
    return pattern[:, :, masked]


def retained_by_brute_force(model, trace, budgets):
    """retained[t0, t, layer, head, budget] by its definition, with a loop over everything."""
    shares = [
        masked_rows(model, trace, step).astype(np.float64).mean(2) for step in range(trace.n_steps)
    ]
    layers, heads = shares[0].shape[:2]
    out = np.full((len(shares), len(shares), layers, heads, len(budgets)), np.nan)
    for first, before in enumerate(shares):
        for step, now in list(enumerate(shares))[first:]:
            for layer, head in np.ndindex(layers, heads):
                ranked = np.argsort(-before[layer, head], kind="stable")
                for place, budget in enumerate(budgets):
                    chosen = ranked[: int(np.ceil(budget * len(ranked) - 1e-9))]
                    row = now[layer, head]
                    out[first, step, layer, head, place] = row[chosen].sum() / row.sum()
    return out


@pytest.mark.parametrize(
    ("family", "options", "sampler"),
    [
        ("LLaDA", {}, fs.Confidence(length=8, steps=4)),
        ("Dream", {}, fs.Confidence(length=8, steps=4, block_length=4)),
        ("LLaDA-MoE", {}, fs.Confidence(length=8, steps=4)),
        ("SDAR", {"block": 4}, fs.Confidence(length=8, steps=8)),  # in blocks, with an exact cache
        ("Fast-dLLM", {}, fs.Confidence(length=8, steps=8)),
        ("Llama", {}, fs.Autoregressive(length=6, stop_at_eos=False)),  # with a KV cache
        ("Qwen3", {}, fs.Autoregressive(length=6, stop_at_eos=False)),
    ],
)
def test_retained_equals_brute_force_over_whole_attention(family, options, sampler, tmp_path):
    model = fs.load(tiny.write(family, tmp_path / family), **options)
    trace = model.trace(PROMPT, sampler, keep=("groups",))
    found = Reuse(budgets=BUDGETS)(trace)
    assert found.retained.dims == ("reference", "step", "layer", "head", "budget")
    expected = retained_by_brute_force(model, trace, BUDGETS)
    # Column sums of a causal model are sums over all rows so far; their difference loses digits.
    tolerance = 5e-6 if trace.info["direction"] == "causal" else 1e-6
    np.testing.assert_allclose(found.retained, expected, atol=tolerance)
    diagonal = np.einsum("ttlhb->tlhb", expected)
    np.testing.assert_allclose(found.oracle, diagonal, atol=tolerance)


def moving_anchor(places, size=40, answer=20, share=0.5):
    """One layer, one head: every row gives `share` to one key, which may differ by step."""
    steps = len(places)
    attention = np.full((steps, 1, 1, size, size), (1 - share) / (size - 1))
    for step, place in enumerate(places):
        attention[step, ..., place] = share
    canvas = np.tile(np.arange(10, 10 + size), (steps + 1, 1))
    canvas[:steps, -answer:] = MASK
    return trace_of(attention, canvas=canvas, prompt_length=size - answer)


def test_a_planted_switch_ends_the_horizon():
    still = Reuse(budgets=(0.05,))(moving_anchor([3] * 8))
    assert still.horizon.item() == 7  # every later step
    late = Reuse(budgets=(0.05,))(moving_anchor([3, 3, 3, 3, 30, 30, 30, 30]))
    shares = late.retained.squeeze(["layer", "head", "budget"])
    others = 0.5 / 39
    assert shares.sel(reference=0, step=3).item() == pytest.approx(0.5 + others)
    assert shares.sel(reference=0, step=4).item() == pytest.approx(2 * others)
    assert shares.sel(reference=4, step=7).item() == pytest.approx(0.5 + others)
    assert np.isnan(shares.sel(reference=4, step=3).item())  # a cache knows the past alone
    # References 0 to 3 last 3, 2, 1 and 0 steps, and references 4 to 7 to the end.
    by_hand = sum(
        np.mean([last >= n for last in (3, 2, 1, 0, 3, 2, 1)[: 8 - n]]) for n in range(1, 8)
    )
    assert late.horizon.item() == pytest.approx(by_hand)
    assert late.lagged.sel(lag=1).item() == pytest.approx((6 * (0.5 + others) + 2 * others) / 7)


def test_a_set_of_the_head_mean_misses_what_single_heads_hold():
    """Two heads rest on two keys: one key cannot serve both, their own sets can."""
    one, two = moving_anchor([3] * 4), moving_anchor([9] * 4)
    size, masked = 40, slice(20, None)
    attention = np.full((4, 1, 2, size, size), 0.5 / 39)
    attention[:, :, 0, :, 3] = attention[:, :, 1, :, 9] = 0.5
    assert (
        masked.start
        == size - int(one.info["prompt_length"])
        == size - int(two.info["prompt_length"])
    )
    canvas = one.canvas.values
    trace = trace_of(attention, canvas=canvas, prompt_length=20)
    found = Reuse(budgets=(1 / 40,))(trace)
    np.testing.assert_allclose(found.lagged.sel(lag=1).squeeze(), 0.5)
    shared = found.lagged_head_mean.sel(lag=1).squeeze()
    assert sorted(shared.values) == pytest.approx([0.5 / 39, 0.5])


def test_the_window_holds_the_first_keys_and_those_near_masked_rows():
    attention = np.zeros((3, 1, 1, 40, 40))
    attention[..., 1], attention[..., 19], attention[..., 10] = 0.5, 0.3, 0.2
    canvas = np.tile(np.arange(10, 50), (4, 1))
    canvas[:3, 20:22] = MASK
    trace = trace_of(attention, canvas=canvas, prompt_length=20)
    found = Reuse(budgets=(0.2,))(
        trace
    )  # eight keys: 0 to 3, 20, 21, and the nearest two, 19 and 22
    np.testing.assert_allclose(found.window.squeeze(), 0.8)


def test_random_attention_is_at_chance():
    """Independent rows and steps: a set chosen at one step holds its share of the keys at another."""
    rng = np.random.default_rng(1)
    traces = []
    for _ in range(8):
        attention = random_attention(rng, 4, 2, 2, 60, spread=0.3)
        canvas = np.tile(np.arange(10, 70), (5, 1))
        canvas[:4, 30:] = MASK
        traces.append(trace_of(attention, canvas=canvas, prompt_length=30))
    found = Reuse(budgets=(0.1, 0.5), lags=(1, 2))(traces)
    np.testing.assert_allclose(found.lagged_lift, 1, atol=0.05)
    np.testing.assert_allclose(found.lagged_window_lift, 1, atol=0.05)
    assert (found.lagged_oracle_lift > 1.03).all()  # it is chosen on the very step
    overlap = Overlap(budgets=(0.1, 0.5), lags=(1, 2))(traces)
    np.testing.assert_allclose(overlap.lagged_lift.mean(["layer", "head"]), 1, atol=0.2)


def test_overlap_by_hand():
    trace = moving_anchor([3, 3, 30])
    found = Overlap(budgets=(1 / 40,), matrix=True, lags=(1, 2))(trace)
    jaccard = found.jaccard.squeeze(["layer", "head", "budget"]).values
    np.testing.assert_allclose(jaccard[0], [1, 1, 0])
    assert found.lagged.sel(lag=1).item() == 0.5 and found.lagged.sel(lag=2).item() == 0
    # One key of 40 and another one agree with probability 1/40.
    assert found.lagged_null.sel(lag=1).item() == pytest.approx(1 / 40)


def test_coverage_by_hand_and_its_null():
    found = Coverage(held=(0.5, 0.9))(moving_anchor([3] * 3, share=0.5))
    assert found["keys"].sel(held=0.5).item() == pytest.approx(1 / 40)
    # 0.5 on one key; 0.4 more take ceil(0.4 / (0.5 / 39)) = 32 others.
    assert found["keys"].sel(held=0.9).item() == pytest.approx(33 / 40)
    even = Coverage(held=(0.5, 0.9))(moving_anchor([3] * 3, share=1 / 40))
    np.testing.assert_allclose(even["keys_lift"], 1)


def test_a_causal_model_is_measured_on_its_newest_row(models):
    """At step t the newest row is the one that predicts token t; earlier rows do not count again."""
    model = models["Llama"]
    trace = model.trace(PROMPT, fs.Autoregressive(length=5, stop_at_eos=False), keep=("groups",))
    found = Coverage(held=(0.5,))(trace)
    needed = []
    for step in range(5):
        rows = np.sort(masked_rows(model, trace, step).mean(2), axis=-1)[..., ::-1]
        needed.append(((rows.cumsum(-1) < 0.5).sum(-1) + 1) / rows.shape[-1])
    np.testing.assert_allclose(found["keys"].sel(held=0.5), np.mean(needed, 0), atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"budgets": (0.0,)}, {"budgets": (1.5,)}, {"budgets": ()}, {"lags": (0,)}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(fs.UsageError, match="Use"):
        Reuse(**wrong)


def test_without_the_matrix_only_lags_and_horizon_are_kept():
    found = Reuse(matrix=False)(moving_anchor([3] * 4))
    assert "retained" not in found.data and "reference" not in found.data.dims
    assert {"lagged", "horizon", "lagged_oracle"} <= set(found.values)


@pytest.mark.parametrize(
    "measure", [Reuse(), Overlap(), Coverage()], ids=lambda m: type(m).__name__
)
def test_results_have_a_table_and_a_figure(measure, llada, tmp_path):
    traces = [
        llada.trace(text, fs.Confidence(length=8, steps=4), keep=("groups",))
        for text in ("Hello", "Bye now")
    ]
    found = measure(traces)
    table = found.table()
    assert {"mean", "low", "high", "null"} <= set(table.columns)
    assert_drawn(found.save_figure(tmp_path / "figure.png"))
