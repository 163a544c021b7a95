"""Expert routing against planted choices, and on a model that has experts."""

import numpy as np
import pytest
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.experts import PAIRS
from floatscope.models import tiny

STEPS, SIZE, PROMPT, EXPERTS = 6, 40, 16, 8


def planted(rng, choose):
    """`choose(masked (S,), rng)`: the experts (S, 2) of each position at a step."""
    canvas = np.full((STEPS + 1, SIZE), 10)
    order = PROMPT + rng.permutation(SIZE - PROMPT)
    for t in range(STEPS):
        canvas[t, order[t * 4 :]] = MASK
    expert = np.zeros((STEPS, 1, 2, SIZE), int)
    last = None
    for t in range(STEPS):
        masked = canvas[t] == MASK
        new = choose(masked, rng)
        # A position keeps its experts while its state stays: steps are no independent draws.
        if last is not None:
            same = (masked == (canvas[t - 1] == MASK))[:, None]
            new = np.where(same, last, new)
        expert[t, 0], last = new.T, new
    attention = random_attention(rng, STEPS, 1, 1, SIZE, spread=0.1)
    trace = trace_of(attention, prompt_length=PROMPT, canvas=canvas)
    dims = ("step", "layer", "choice", "key")
    half = np.full(expert.shape, 0.5)
    return fs.Trace(trace.data.assign(expert=(dims, expert), expert_weight=(dims, half)))


def by_chance(masked, rng):
    return rng.random((SIZE, EXPERTS)).argsort(1)[:, :2]


def by_state(masked, rng):
    """Masked positions to the first two experts, the others to any of the rest."""
    other = 2 + rng.random((SIZE, EXPERTS - 2)).argsort(1)[:, :2]
    return np.where(masked[:, None], [0, 1], other)


def test_states_that_have_experts_of_their_own_differ_wholly():
    result = fs.measures.ExpertRouting()(planted(np.random.default_rng(0), by_state))
    found, null = (result[n].sel(layer=0) for n in ("difference", "difference_null"))
    np.testing.assert_allclose(found.sel(pair=["masked–revealed", "masked–prompt"]), 1)
    assert (null.sel(pair=["masked–revealed", "masked–prompt"]) < 0.6).all()
    assert result["difference"].attrs["units"] == "total variation"


def test_random_routing_equals_its_null():
    """Choices that know nothing: over examples the difference is the null, though both are far from 0."""
    rng = np.random.default_rng(1)
    result = fs.measures.ExpertRouting(draws=40)([planted(rng, by_chance) for _ in range(24)])
    for pair in PAIRS[:3]:
        found = result["difference"].sel(layer=0, pair=pair)
        null = float(result["difference_null"].sel(layer=0, pair=pair))
        assert null > 0.1
        assert abs(float(found) - null) < 0.05, pair


def test_the_definition_by_hand():
    trace = planted(np.random.default_rng(2), by_chance)
    experts = trace.data["expert"].values[:, 0]  # (t, choice, s)
    masked, prompt = trace.data["masked"].values, np.arange(SIZE) < PROMPT
    count = np.zeros((2, EXPERTS))
    for t in range(STEPS):
        for s in range(SIZE):
            if masked[t, s] or prompt[s]:
                for one in experts[t, :, s]:
                    count[int(prompt[s]), one] += 1
    share = count / count.sum(1, keepdims=True)
    found = fs.measures.ExpertRouting()(trace)["difference"].sel(layer=0, pair="masked–prompt")
    np.testing.assert_allclose(found, np.abs(share[0] - share[1]).sum() / 2)


def test_on_a_model_with_experts(tmp_path):
    model = fs.load(tiny.write("LLaDA-MoE", tmp_path / "moe", tiny.Shape(layers=2)))
    sampler = fs.Confidence(length=8, steps=4)
    traces = model.trace(["Hello", "Good day"], sampler, keep=["mass", "experts"])
    result = fs.measures.ExpertRouting(draws=10)(traces)
    assert np.isnan(result["difference"].sel(layer=0)).all()  # a dense layer
    sparse = result["difference"].sel(layer=1, pair=list(PAIRS[:3]))
    assert ((sparse > 0) & (sparse <= 1)).all()
    assert traces[0].info["experts"] == 6
    saved = fs.Trace.load(traces[0].save(tmp_path / "t.zarr"))
    np.testing.assert_array_equal(saved.experts["expert"], traces[0].experts["expert"])
    result.save_figure(tmp_path / "f.svg")


def test_traces_without_experts_and_rules_per_head_are_refused():
    trace = planted(np.random.default_rng(3), by_chance)
    with pytest.raises(fs.TraceError, match="did not keep expert. Trace a model with experts"):
        fs.measures.ExpertRouting()(fs.Trace(trace.data.drop_vars(["expert", "expert_weight"])))
    with pytest.raises(fs.UsageError, match="per head"):
        fs.measures.ExpertRouting(rule=fs.anchors.ZScore(per_head=True))
