"""Null values of the measures: uniform attention between regions and through layers, and random keys.

The null of a single key's mass is in `stats.uniform`. No function here builds an S×S matrix. The product of
uniform attention with a state is, in row i, the mean of the state over the keys 0 … last_i. For causal,
bidirectional and block-causal models, this mean follows from one cumulative sum; for layers with local
attention, it follows from the difference of two entries of this sum.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from ..errors import UsageError
from ..sequences.direction import Direction, current_block
from ..stats.uniform import first_visible, last_visible
from ..trace import Trace
from ..trace.windows import is_local, reaches

MASKED, REVEALED = "masked", "revealed"
_ANSWER = "answer"
Rows = Float[np.ndarray, "s r"]


# Positions and their regions


def names(trace: Trace) -> list[str]:
    """Return the region names in the order of `flow`: those of the prompt, then masked and revealed."""
    regions = trace.data["region"].values.astype(str)
    return [*dict.fromkeys(regions[regions != _ANSWER].tolist()), MASKED, REVEALED]


def members(trace: Trace, step: int) -> Bool[np.ndarray, "s r"]:
    """Return the region of each position present at a kept step as one-hot rows: (position, region)."""
    size = int((trace.canvas.values[step] >= 0).sum())
    region = trace.data["region"].values[:size].astype(str)
    masked = trace.data["masked"].sel(step=step).values[:size]
    label = np.where(region == _ANSWER, np.where(masked, MASKED, REVEALED), region)
    return label[:, None] == np.array(names(trace))


def tokens(trace: Trace) -> Int[np.ndarray, "t r"]:
    """Count the positions of each region at each kept step."""
    steps = [members(trace, step).sum(0) for step in _coordinates(trace, "step")]
    return np.stack(steps) if steps else np.zeros((0, len(names(trace))), np.int64)


def _coordinates(trace: Trace, dim: str) -> list[int]:
    return [int(x) for x in trace.data[dim].values]


# Uniform attention


def spread(
    state: Rows, last: Int[np.ndarray, " s"], first: Int[np.ndarray, " s"] | int = 0
) -> Rows:
    """Multiply uniform attention over the visible keys by `state`.

    Each row of the result is the mean of `state` over the keys that the row sees, from `first` to `last`.
    """
    total = np.concatenate([np.zeros_like(state[:1]), np.cumsum(state, axis=0)])
    return (total[last + 1] - total[first]) / (last - first + 1)[:, None]


def uniform_rows(trace: Trace, state: Rows, step: int, reach: int | None = None) -> Rows:
    """Return the mean of `state` over the keys that each row sees at one step (see `spread`).

    `reach` is the number of keys that a row of a local layer sees to either side; None: no limit.
    """
    info, current = trace.info, None
    direction, block = Direction(info["direction"]), int(info["block_size"]) or None
    offset = int(info.get("grid_offset", 0))  # None for models that do not decode in blocks
    if direction is Direction.ACTIVE_BLOCK and block is not None:
        first, stop = (int(edge) for edge in trace.data["block"].values[step])
        current = current_block(first, stop, block, offset)
    size = len(state)
    last = last_visible(direction, block, size, offset=offset, current=current, reach=reach)
    return spread(state, last, first_visible(size, reach))


def _reaches(trace: Trace) -> list[int | None]:
    """Return how many keys rows see to either side in each kept layer; [None] without local layers."""
    if not is_local(trace.data):
        return [None]
    layers = _coordinates(trace, "layer")
    reach_of_layer = reaches(trace.info, max(layers, default=-1) + 1)
    return [reach_of_layer[layer] for layer in layers]


def uniform_received(trace: Trace) -> xr.DataArray:
    """Return `trace.received` under uniform attention, the same for all heads: (step[, layer], key)."""
    return trace.null * trace.data["rows_counted"].sum("group") / trace.data["visible"]


def flow_null(trace: Trace) -> xr.DataArray:
    """Return `trace.flow` under uniform attention: (step, source, target); NaN for an empty source.

    If some layers have local attention, the result also has the dimension layer.
    """
    nulls = []
    for step in _coordinates(trace, "step"):
        inside = members(trace, step).astype(np.float64)
        layers = [uniform_rows(trace, inside, step, reach) for reach in _reaches(trace)]
        nulls.append([_from_regions(inside, rows) for rows in layers])
    null = _labelled(trace, nulls, ("step", "layer", "source", "target"))
    return null if is_local(trace.data) else null.isel(layer=0, drop=True)


def row_null(trace: Trace) -> xr.DataArray:
    """Return `row_flow` under uniform attention, for the row that predicted each token.

    The dimensions are (event, target), or (event, layer, target) if some layers have local attention.
    """
    steps, rows = trace.rows["event_step"].values, rows_of_events(trace)
    reached = _reaches(trace)
    nulls = np.zeros((len(steps), len(reached), len(names(trace))))
    for step in np.unique(steps):
        inside, revealed = members(trace, int(step)).astype(np.float64), steps == step
        for i, reach in enumerate(reached):
            nulls[revealed, i] = uniform_rows(trace, inside, int(step), reach)[rows[revealed]]
    null = _labelled(trace, nulls, ("event", "layer", "target"))
    return null if is_local(trace.data) else null.isel(layer=0, drop=True)


def rows_of_events(trace: Trace) -> Int[np.ndarray, " e"]:
    """Return the row that predicted each revealed position: the same row, or the row before if shifted."""
    rows: np.ndarray = trace.rows["event_position"].values - int(trace.info["shift"])
    return rows


def length_share(trace: Trace) -> xr.DataArray:
    """Return each region's share of positions, (step, target), the limit of a bidirectional rollout."""
    count = tokens(trace)
    return _labelled(trace, count / count.sum(1, keepdims=True), ("step", "target"))


def rollout_null(trace: Trace) -> xr.DataArray:
    """Return `trace.rollout` under uniform attention: (step, layer, source, target).

    R_l = ½(U + I)R_{l−1}, where U is the matrix of uniform attention, is computed for all layers up to the
    last kept layer. A row of a causal model does not change after it is computed, so all steps of a causal
    trace share one computation.
    """
    steps, layers, nulls = _coordinates(trace, "step"), _coordinates(trace, "layer"), []
    shared = trace.info["direction"] == str(Direction.CAUSAL) and not trace.data["masked"].any()
    rolled = _roll(trace, max(steps), layers) if shared and steps else None
    for step in steps:
        inside = members(trace, step).astype(np.float64)
        states = _roll(trace, step, layers) if rolled is None else rolled
        nulls.append([_from_regions(inside, state[: len(inside)]) for state in states])
    return _labelled(trace, nulls, ("step", "layer", "source", "target"))


def _roll(trace: Trace, step: int, layers: list[int]) -> list[np.ndarray]:
    states = [members(trace, step).astype(np.float64)]
    for reach in reaches(trace.info, max(layers) + 1):
        states.append((uniform_rows(trace, states[-1], step, reach) + states[-1]) / 2)
    return [states[layer + 1] for layer in layers]


def _from_regions(inside: np.ndarray, rows: np.ndarray) -> np.ndarray:
    count = inside.sum(0)[:, None]
    return inside.T @ rows / np.where(count > 0, count, np.nan)


def _labelled(trace: Trace, values: Any, dims: tuple[str, ...]) -> xr.DataArray:
    """Label an array by steps, layers and regions; a layer axis of size 1, shared by all, gets no labels."""
    coords: dict[str, Any] = {d: trace.data[d].values for d in ("step", "layer") if d in dims}
    coords |= {d: names(trace) for d in ("source", "target") if d in dims}
    array = np.asarray(values, float)
    if not array.size:
        array = np.zeros([len(coords.get(d, ())) for d in dims])
    fits = {d: x for d, x in coords.items() if len(x) == array.shape[dims.index(d)]}
    return xr.DataArray(array, fits, dims)


# Random keys


def random_keys(
    k: int, size: int, *, draws: int = 200, seed: int = 0
) -> Int[np.ndarray, "draws k"]:
    """Draw k different keys of `size` keys, `draws` times, all keys with the same probability."""
    if not 0 < k <= size:
        raise UsageError(f"{k} random keys of {size}", f"Use k from 1 to {size}.")
    order = np.random.default_rng(seed).random((draws, size)).argsort(1)
    return order[:, :k]


def matched_keys(
    keys: np.ndarray | Sequence[int], size: int, *, width: int = 8, draws: int = 200, seed: int = 0
) -> Int[np.ndarray, "draws k"]:
    """Draw for each of `keys` another key within `width` positions, or the nearest unused key.

    The drawn keys are not among `keys`, and no key occurs twice in a draw.
    """
    keys = np.asarray(keys, dtype=np.int64)
    if 2 * len(keys) > size:
        raise UsageError(
            f"no {len(keys)} other keys among {size}", "Match at most half of the keys."
        )
    rng, drawn = np.random.default_rng(seed), np.empty((draws, len(keys)), np.int64)
    for draw in range(draws):
        free = np.ones(size, bool)
        free[keys] = False
        for i, key in enumerate(keys):
            candidates = np.flatnonzero(free)
            distances = abs(candidates - key)
            pick = rng.choice(candidates[distances <= max(width, distances.min())])
            drawn[draw, i], free[pick] = pick, False
    return drawn


def mass_on(mass: xr.DataArray, keys: Int[np.ndarray, "draws k"]) -> xr.DataArray:
    """Sum the mass on the keys of each draw, with the dimension `draw` for `key`; absent keys count as 0."""
    picked = mass.isel(key=xr.DataArray(keys, dims=("draw", "picked")))
    return picked.sum("picked").drop_vars("key", errors="ignore")
