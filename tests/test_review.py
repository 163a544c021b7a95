"""Where a first version went wrong: nulls under a sink and a causal mask, masks left over, pooling."""

import numpy as np
import pytest
from planted import random_attention, trace_of

import floatscope as fs
from floatscope.measures import MEASURES
from floatscope.measures.chance import Chance
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World


def with_sink(a, share):
    """Every row gives `share` to key 0 and the rest as before."""
    found = (1 - share) * a
    found[..., 0] += share
    return found


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_sink_does_not_look_like_noise(share):
    """The chance level of the other keys is that of the same attention without the sink."""
    a = random_attention(np.random.default_rng(0), 2, 1, 8, 96, causal=True, spread=0.5)
    seen = np.arange(96, 0, -1.0)
    levels = []
    for attention in (a, with_sink(a, share)):
        received = trace_of(attention, causal=True).received.mean("head").values[:, 0]
        levels.append(Chance(seen, received).pair(3, 3)[0])
    assert levels[1] == pytest.approx(levels[0], abs=0.15)


def test_dispersion_finds_nothing_in_random_causal_attention():
    """The first key wins there by construction; its null says so."""
    rng = np.random.default_rng(1)
    traces = [
        trace_of(random_attention(rng, 1, 2, 8, 64, causal=True, spread=0.3), causal=True)
        for _ in range(12)
    ]
    found = fs.Dispersion()(traces)
    assert (found["first_null"] > 0.5).all()
    assert (abs(found["first"] - found["first_null"]) < 0.35).all()
    assert (abs(found["dispersion"] - found["dispersion_null"]) < 0.35).all()


@pytest.mark.parametrize("causal", [False, True])
def test_unrelated_twins_are_no_more_alike_than_chance(causal):
    rng = np.random.default_rng(2)
    one, two = (
        [
            trace_of(random_attention(rng, 1, 2, 2, 64, causal=causal, spread=0.5), causal=causal)
            for _ in range(6)
        ]
        for _ in range(2)
    )
    found = fs.perturbation(one, two)
    assert (abs(found["perturbation"] - found["perturbation_null"]) < 0.05).all()


def test_anchors_of_uniform_causal_attention_are_its_null():
    a = np.tril(np.ones((64, 64)))
    a = np.broadcast_to(a / a.sum(1, keepdims=True), (1, 1, 1, 64, 64))
    found = fs.Absorption()(trace_of(a, causal=True))
    assert found["anchors"].item() == found["anchors_null"].item() > 0
    flat = fs.Absorption()(trace_of(np.full((1, 1, 1, 64, 64), 1 / 64)))
    assert flat["anchors_null"].item() == 0


@pytest.fixture(scope="module")
def results():
    """Every measure on both models of the pair."""
    prompts = [prompt_of(e) for e in World().examples(LEVELS["three"], 3, seed=4)]
    found = {}
    for name, sampler in (
        ("pair/mdm", fs.Confidence(length=10)),
        ("pair/arm", fs.Autoregressive(length=10)),
    ):
        traces = fs.load(name).trace(prompts, sampler)
        found[name] = {key: measure()(traces) for key, measure in MEASURES.items()}
    return found


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_on_the_pair(results, name, tmp_path):
    """Tables, figures and the two models side by side."""
    one, other = results["pair/mdm"][name], results["pair/arm"][name]
    for result in (one, other):
        assert len(result.table())
        assert result.save_figure(tmp_path / "f.svg").stat().st_size > 2000
        assert "n = 3" in repr(result)
    assert "left_out" in fs.compare(one, other).data.attrs


def test_masks_left_over_stay_masks_when_read():
    model = fs.load("pair/mdm")
    prompt = prompt_of(World().examples(LEVELS["three"], 1, seed=1)[0])
    trace = model.trace(prompt, fs.Confidence(length=16, block_length=4))
    read = model.read(trace)
    left = int((trace.canvas.values[-1] == model.mask_id).sum())
    assert trace.info["ended"] == "eos"
    assert left > 0
    assert int(read.data["rows_counted"].sel(group="masked").sum()) == left
    total = fs.RegionFlow(rows="answer")(read)["flow"].sum("category")
    np.testing.assert_allclose(total, 1, atol=1e-4)
    with pytest.raises(fs.TraceError, match="reveals nothing"):
        fs.RetrievalHeads()(read)


def test_what_cannot_be_pooled_is_refused(llada):
    sampler = fs.Confidence(length=4, steps=2)
    traces = [llada.trace("Hello there, you", sampler, layers=layers) for layers in (None, [1])]
    with pytest.raises(fs.UsageError, match="kept different layers"):
        fs.Absorption()(traces)


def test_tables_count_the_examples_behind_each_value():
    size = 40
    flat = np.full((2, 1, 1, size, size), 1 / size)
    moving = flat.copy()
    moving[..., 5] = 0.5
    moving /= moving.sum(-1, keepdims=True)
    table = fs.Drift()([trace_of(flat), trace_of(moving)]).table()
    row = table[table["value"] == "persistence"].iloc[0]
    assert row["n"] == 1  # the flat one has no anchors, and says nothing
