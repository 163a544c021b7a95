"""The nulls against whole S×S matrices, against models whose attention is uniform, and by hand."""

import numpy as np
import pytest
import torch
import xarray as xr
from planted import MASK, random_attention, trace_of
from tiny_models import sampler_for

import floatscope as fs
from floatscope.measures import nulls
from floatscope.models import Direction
from floatscope.stats import uniform
from floatscope.stats.chance import Chance

REGIONS = ["template", "passage 1", "passage 1", "passage 1", "passage 2", "question"]


def uniform_attention(size, direction, block=4):
    i = np.arange(size)
    last = {
        Direction.CAUSAL: i,
        Direction.BIDIRECTIONAL: np.full(size, size - 1),
        Direction.BLOCK_CAUSAL: np.minimum((i // block + 1) * block - 1, size - 1),
        # Blocks begin at 1, 5, 9; that of the answer's first position, 6, is being decided.
        Direction.ACTIVE_BLOCK: np.where(
            i < 5, i, np.minimum(((i + 3) // block + 1) * block - 4, size - 1)
        ),
    }[direction]
    sees = i[None, :] <= last[:, None]
    return sees / sees.sum(1, keepdims=True)


def uniform_trace(direction, layers=5, size=10):
    a = uniform_attention(size, direction)
    canvas = np.tile(np.arange(10, 10 + size), (3, 1))
    if direction is not Direction.CAUSAL:
        canvas[0, 6:], canvas[1, 7:] = MASK, MASK
    trace = trace_of(
        np.broadcast_to(a, (2, layers, 2, size, size)),
        causal=direction is Direction.CAUSAL,
        regions=[*REGIONS, *["answer"] * 4],
        prompt_length=6,
        canvas=canvas,
        events=[(0, 6, 16), (1, 8, 18)],
        shift=int(direction is Direction.CAUSAL),
    )
    if direction.in_blocks:
        trace.data.attrs |= {"direction": str(direction), "block_size": 4}
    if direction is Direction.ACTIVE_BLOCK:
        trace.data.attrs["grid_offset"] = 3
        trace.data["block"] = (("tick", "edge"), np.array([[6, 9], [6, 9]]))
    return trace


@pytest.mark.parametrize("direction", list(Direction))
def test_uniform_attention_is_its_own_null(direction):
    """The planted trace is computed from the whole matrix, the null from cumulative sums."""
    trace = uniform_trace(direction)
    for name, null in (
        ("flow", nulls.flow_null(trace)),
        ("rollout", nulls.rollout_null(trace)),
        ("row_flow", nulls.row_null(trace)),
    ):
        kept = trace.data[name]
        null = null.broadcast_like(kept).transpose(*kept.dims)
        np.testing.assert_allclose(kept.values, null.values, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["LLaDA", "Dream", "Llama", "Qwen2"])
def test_a_model_with_uniform_attention_is_its_own_null(checkpoints, name):
    """Queries of zero look at all keys alike: what is captured must equal the nulls."""
    model = fs.load(checkpoints[name])
    with torch.no_grad():
        for parameter, weight in model.net.named_parameters():
            if "q_proj" in parameter:
                weight.zero_()
    prompt = fs.Prompt.rag("who?", ["One is here.", "Two was there, too."], gold=1, chat=False)
    for trace in model.trace([prompt, fs.Prompt.plain("Hi", chat=False)], sampler_for(model, 6, 3)):
        for kept, null in (
            (trace.flow, nulls.flow_null(trace)),
            (trace.rollout, nulls.rollout_null(trace)),
            (trace.rows["row_flow"], nulls.row_null(trace)),
        ):
            null = null.broadcast_like(kept).transpose(*kept.dims)
            np.testing.assert_allclose(kept.values, null.values, atol=1e-5)


def test_rollout_null_of_a_kept_layer_equals_that_of_the_full_trace(llama):
    """A rollout runs through layers that are not kept; so does its null."""
    prompt = fs.Prompt.plain("Hello there", chat=False)
    some = llama.trace(prompt, sampler_for(llama, 4), layers=[1])
    every = llama.trace(prompt, sampler_for(llama, 4))
    np.testing.assert_allclose(
        nulls.rollout_null(some).isel(layer=0), nulls.rollout_null(every).sel(layer=1)
    )


def test_flow_null_sums_to_the_null_of_mass():
    trace = uniform_trace(Direction.CAUSAL)
    flow, count = nulls.flow_null(trace).fillna(0), nulls.tokens(trace)
    mass = (flow.values * count[:, :, None]).sum(1) / count.sum(1, keepdims=True)
    by_key = uniform.mass(Direction.CAUSAL, None, 10)
    np.testing.assert_allclose(mass[0, 0], by_key[0])
    np.testing.assert_allclose(mass[0, 1], by_key[1:4].sum())


def test_length_share_is_where_a_bidirectional_rollout_ends():
    trace = uniform_trace(Direction.BIDIRECTIONAL, layers=40)
    share = nulls.length_share(trace)
    np.testing.assert_allclose(share.sum("target"), 1)
    end = nulls.rollout_null(trace).isel(layer=-1)
    np.testing.assert_allclose(end.isel(step=0, source=1), share.isel(step=0), atol=1e-9)


@pytest.mark.parametrize(
    ("size", "layers", "expected"), [(256, 16, 0.768), (256, 32, 0.992), (1024, 32, 0.980)]
)
def test_a_causal_rollout_of_uniform_attention_ends_on_position_0(size, layers, expected):
    """An absorbing state. Brute force with random attention agrees with the null."""
    rng = np.random.default_rng(size)
    state = first = np.eye(size)[:, :1]
    last = np.arange(size)
    for _ in range(layers):
        first = (nulls.spread(first, last) + first) / 2
        a = random_attention(rng, 1, 1, 1, size, causal=True)[0, 0, 0]
        state = (a @ state + state) / 2
    assert first.mean() == pytest.approx(expected, abs=1e-3)
    assert state.mean() == pytest.approx(expected, abs=0.02)


def test_random_keys_are_even_and_without_repeats():
    keys = nulls.random_keys(3, 20, draws=2000)
    assert all(len(set(row)) == 3 for row in keys)
    np.testing.assert_allclose(np.bincount(keys.ravel(), minlength=20) / 6000, 1 / 20, atol=0.01)
    mass = xr.DataArray(np.full((2, 20), 1 / 20), dims=("layer", "key"))
    np.testing.assert_allclose(nulls.mass_on(mass, keys), 3 / 20)
    assert nulls.mass_on(mass, keys).dims == ("layer", "draw")


def test_matched_keys_are_near_and_different():
    anchors = np.array([0, 1, 50])
    keys = nulls.matched_keys(anchors, 100, width=5)
    assert not np.isin(keys, anchors).any()
    assert all(len(set(row)) == 3 for row in keys)
    assert (abs(keys - anchors) <= 5).all()
    near = nulls.matched_keys(np.arange(10), 40, width=2)  # nothing free within 2: the nearest
    assert near.min() >= 10 and all(len(set(row)) == 10 for row in near)


def test_more_random_or_matched_keys_than_there_are_is_refused():
    with pytest.raises(fs.UsageError, match="30 random keys of 20"):
        nulls.random_keys(30, 20)
    with pytest.raises(fs.UsageError, match="no 6 other keys among 10"):
        nulls.matched_keys(np.arange(6), 10)


# What looks like something and is chance


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
    found = fs.measures.Dispersion()(traces)
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
    found = fs.measures.perturbation(one, two)
    assert (abs(found["perturbation"] - found["perturbation_null"]) < 0.05).all()


def test_anchors_of_uniform_causal_attention_are_its_null():
    a = np.tril(np.ones((64, 64)))
    a = np.broadcast_to(a / a.sum(1, keepdims=True), (1, 1, 1, 64, 64))
    found = fs.measures.Absorption()(trace_of(a, causal=True))
    assert found["anchors"].item() == found["anchors_null"].item() > 0
    flat = fs.measures.Absorption()(trace_of(np.full((1, 1, 1, 64, 64), 1 / 64)))
    assert flat["anchors_null"].item() == 0
