"""Every registered measure on both models of the pair, and what all have in common."""

import numpy as np
import pytest
from figure_sizes import texts_outside
from pictures import assert_drawn
from planted import trace_of

import floatscope as fs
from floatscope.measures import MEASURES
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World

# The pair has no experts, and states are read apart: `test_expert_routing.py`, `test_movement.py`.
THERE = {
    name: measure
    for name, measure in MEASURES.items()
    if "experts" not in measure().needs and name != "movement"
}


@pytest.fixture(scope="module")
def results():
    """Every measure on both models of the pair."""
    prompts = [prompt_of(e) for e in World().examples(LEVELS["three"], 3, seed=4)]
    found = {}
    for name, sampler in (
        ("pair/mdm", fs.Confidence(length=8, steps=4)),
        ("pair/arm", fs.Autoregressive(length=6)),
    ):
        traces = fs.load(name).trace(prompts, sampler, keep=fs.statistics.STATISTICS)
        found[name] = {key: measure()(traces) for key, measure in THERE.items()}
    return found


@pytest.mark.parametrize("name", THERE)
def test_every_measure_on_the_pair(results, name, tmp_path):
    """Tables, figures and the two models side by side."""
    one, other = results["pair/mdm"][name], results["pair/arm"][name]
    for result in (one, other):
        assert len(result.table())
        assert_drawn(result.save_figure(tmp_path / "f.svg"))
        assert "n = 3" in repr(result)
    column = one.plot(width=3.3, font_size=8)  # of a paper
    assert column.get_figwidth() == 3.3 and not texts_outside(column)
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
    total = fs.measures.RegionFlow(rows="answer")(read)["flow"].sum("category")
    np.testing.assert_allclose(total, 1, atol=1e-4)
    with pytest.raises(fs.TraceError, match="reveals no tokens"):
        fs.measures.RetrievalHeads()(read)


def test_what_cannot_be_pooled_is_refused(llada):
    sampler = fs.Confidence(length=4, steps=2)
    traces = [llada.trace("Hello there, you", sampler, layers=layers) for layers in (None, [1])]
    with pytest.raises(fs.UsageError, match="kept different layers"):
        fs.measures.Absorption()(traces)


def test_tables_count_the_examples_behind_each_value():
    size = 40
    flat = np.full((2, 1, 1, size, size), 1 / size)
    moving = flat.copy()
    moving[..., 5] = 0.5
    moving /= moving.sum(-1, keepdims=True)
    table = fs.measures.Drift()([trace_of(flat), trace_of(moving)]).table()
    row = table[table["value"] == "persistence"].iloc[0]
    assert row["n"] == 1  # the flat one has no anchors, and says nothing
