"""Movement over denoising steps: the reference key, fixed rows, layers that move, anchors that are real."""

import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import assert_drawn
from planted import trace_of
from scipy.stats import binom
from tiny_models import DIFFUSION, sampler_for

import floatscope as fs
from floatscope.measures import Movement
from floatscope.recording.finished import replaying
from floatscope.stats.existence import real_layers
from floatscope.stats.movement import UNTIL, follow, moving_layers
from floatscope.trace.states import N_STATES, choose_states

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from verdict_parts.movement import FRONTIER, LATE, NOISE, ROWS, STILL, SWAP, draw, states


def path(*shares):
    """States of one cell, on the same rows."""
    shares = np.array(shares, float)[:, None]
    return follow(shares[:-1], shares[1:])


def test_a_jump_and_a_slow_handover_count_alike():
    jump = path([0.6, 0.1, 0.3], [0.1, 0.6, 0.3])
    slow = path([0.5, 0.2], [0.45, 0.3], [0.4, 0.4], [0.3, 0.45], [0.2, 0.5])
    assert jump.key[:, 0].tolist() == [0, 1] and jump.moved
    assert slow.key[:, 0].tolist() == [0, 0, 0, 0, 1] and slow.changed[:, 0].tolist() == [
        False
    ] * 3 + [True]


def test_near_ties_change_nothing():
    assert not path([0.5, 0.45], [0.45, 0.5], [0.5, 0.45], [0.3, 0.59]).moved


def test_other_rows_bring_another_reference_and_no_movement():
    """The rows of the second pair look at key 1 in both states: nothing has moved."""
    shares = np.array([[[0.8, 0.1]], [[0.1, 0.8]]])  # (pair, cell, key)
    found = follow(shares, shares)
    assert found.key[:, 0].tolist() == [0, 0, 1] and not found.moved


@pytest.mark.parametrize("n", [20, 48])
def test_layers_are_counted_by_exact_simultaneous_intervals(n):
    moved = np.zeros((n, 4))
    for layer, times in enumerate((0, n // 2, n - 2, n)):
        moved[:times, layer] = 1
    found = moving_layers(moved, level=0.95)
    # A layer surely moves if as many would be rare at one half, at a quarter of the tail each.
    tail = binom.sf(moved.sum(0) - 1, n, 0.5)
    assert found.low == (tail < 0.05 / 2 / 4).sum() and found.number == 2
    assert found.high == (binom.cdf(moved.sum(0), n, 0.5) >= 0.05 / 2 / 4).sum()
    none = moving_layers(moved, np.zeros(4, bool), level=0.95)
    assert none.low == none.number == 0 and none.high == found.high


def test_an_untrained_network_has_no_real_anchor():
    """One more network like its controls: anywhere among 12 layers in at most 5 % of the cases."""
    rng = np.random.default_rng(0)

    def network():
        return 0.03 * np.exp(rng.normal(0, 0.1, 12) + rng.normal(0, 0.05, (20, 12)))

    found = [
        real_layers(network(), np.stack([network() for _ in range(5)])).any() for _ in range(400)
    ]
    assert np.mean(found) < 0.075
    controls = np.stack([network() for _ in range(5)])
    stronger = network() * np.where(np.arange(12) < 3, 3.0, 1.0)
    assert real_layers(stronger, controls)[:3].all()
    assert not real_layers(stronger, controls[:2]).any()  # two have no variance worth the name


@pytest.fixture(scope="module")
def decoding(models):
    sampler = fs.Confidence(length=24, steps=12, block_length=4, seed=1)
    return models["LLaDA"].trace("One two three four five six", sampler, keep=["mass", "groups"])


def test_states_are_five_with_at_least_eight_masked_rows(decoding):
    steps = choose_states(decoding)
    masked = decoding.data["masked"].values.sum(1)[steps]
    assert steps[0] == 0 and (masked >= 8).all() and steps == sorted(set(steps))
    assert masked[-1] < 10  # the last such step, two tokens a step


def test_groups_of_a_state_are_sums_over_its_rows(models, decoding):
    """Against whole rows of attention, computed by another way."""
    model, steps = models["LLaDA"], choose_states(decoding)
    read = model.read_states(decoding)
    regions = read.data["region"].values.astype(str)
    for state, step in enumerate(steps):
        whole = model.pattern(decoding, step=step).transpose("layer", "head", "query", "key").values
        for group in range(state, len(steps)):
            rows = regions == f"{UNTIL} {group}"
            if rows.any():
                share = read.mass_from(f"{UNTIL} {group}").isel(step=state)
                share = share.transpose("layer", "head", "key").values
                np.testing.assert_allclose(share, whole[:, :, rows].mean(2), atol=1e-5)
        masked = decoding.data["masked"].values[step]
        last = np.array([int(r.split()[-1]) if r.startswith(UNTIL) else -1 for r in regions])
        np.testing.assert_array_equal(masked, last >= state)


def test_a_replay_gives_what_the_decoding_gave(models, decoding):
    again = replaying(models["LLaDA"], decoding)
    np.testing.assert_allclose(again.mass, decoding.mass, atol=1e-6)
    np.testing.assert_array_equal(again.change, decoding.change)
    np.testing.assert_array_equal(again.data["masked"], decoding.data["masked"])


def test_only_models_that_see_the_whole_canvas_are_compared(models, decoding):
    with pytest.raises(fs.UsageError, match="see every position"):
        models["Llama"].read_states(decoding)
    with pytest.raises(fs.TraceError, match="read_states"):
        Movement()(decoding)


@pytest.mark.parametrize("family", DIFFUSION)
def test_a_short_answer_has_no_movement(models, family):
    trace = models[family].trace("Hello there", sampler_for(models[family], length=4))
    found = Movement()(models[family].read_states(trace))
    assert np.isnan(found.moved).all() and float(found.content) <= 4


@pytest.mark.parametrize(
    ("kind", "moving"), [(FRONTIER, 2), (LATE, 4), (STILL, 0), (SWAP, 0), (ROWS, 0), (NOISE, 12)]
)
def test_planted_layers_move(kind, moving, tmp_path):
    rng = np.random.default_rng(3)
    found = Movement()([states(kind, rng, 12, 3.2) for _ in range(24)])
    assert ((found.moved > 0.5).values == (np.arange(12) < moving)).all()
    if kind == FRONTIER:
        assert (found.frontier.values[:2] > 0.9).all()
        assert_drawn(found.save_figure(tmp_path / "map.png"))


def test_attention_that_moves_with_the_row_set_alone_is_still():
    """Each row keeps its key; the rows that are masked change. A strongest key over all masked rows moves."""
    rng = np.random.default_rng(0)
    trace = states(ROWS, rng, 2, 3.2)
    assert not Movement()(trace).moved.any()
    strongest = [
        trace.mass_from(*[f"{UNTIL} {i}" for i in range(state, N_STATES)])
        .isel(step=state, head=0)
        .values.argmax(-1)
        for state in range(N_STATES)
    ]
    assert len({tuple(one) for one in strongest}) > 1


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [(FRONTIER, "holds"), (LATE, "holds"), (STILL, "refuted"), (NOISE, "undecided")],
)
def test_claim_three_by_its_planted_truth(kind, verdict):
    claim = draw(kind, np.random.default_rng(5), n=20, layers=6, networks=1, controls=4)
    assert claim.verdict == verdict, claim.why
    assert claim.theta.n == 20 and "layers" in claim.rule


def test_fewer_than_twenty_texts_decide_nothing():
    claim = draw(LATE, np.random.default_rng(5), n=19, layers=6, networks=1, controls=3)
    assert claim.verdict == "undecided" and "20 examples" in claim.why


def test_a_trace_without_rows_by_region_is_refused():
    with pytest.raises(fs.TraceError, match="read_states"):
        Movement()(trace_of(np.full((5, 1, 1, 6, 6), 1 / 6)))
