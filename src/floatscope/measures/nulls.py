"""What attention that knows nothing would give, for everything the measures report: one place.

Beside `floatscope.null.uniform` (the null of a key's mass) stand here the nulls of regions: uniform
attention over the visible keys from region to region, from the row that predicted a token, and
through all layers (rollout); length share; and columns drawn at random, matched for position or
not. None of it needs an S×S matrix: uniform attention of row i is the mean over the keys 0 … last_i,
so a cumulative sum serves causal, bidirectional and block-causal models alike, and the difference of
two a local layer. Nothing here is measured: only a trace's regions, masks, direction and lengths are read.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from ..errors import UsageError
from ..sequences.direction import Direction, current_block
from ..stats.uniform import first_visible
from ..stats.uniform import last_visible as last_of
from ..trace import Trace
from ..trace.windows import is_local, reaches

MASKED, REVEALED = "masked", "revealed"
_ANSWER = "answer"


# Where positions stand


def last_visible(
    trace: Trace, size: int, step: int, reach: int | None = None
) -> Int[np.ndarray, " s"]:
    """The last key each row sees at a step (its number) when `size` positions are there, in a layer whose
    rows see everything or, to either side, `reach`."""
    info, current = trace.info, None
    direction, block = Direction(info["direction"]), int(info["block_size"]) or None
    offset = int(info.get("grid_offset", 0))  # traces of other models, and older ones, have none
    if direction is Direction.ACTIVE_BLOCK and block is not None:
        first, stop = (int(edge) for edge in trace.data["block"].values[step])
        current = current_block(first, stop, block, offset)
    return last_of(direction, block, size, offset=offset, current=current, reach=reach)


def present(trace: Trace, step: int) -> int:
    """How many positions were there at a step (its number, not its place among the kept)."""
    return int((trace.canvas.values[step] >= 0).sum())


def names(trace: Trace) -> list[str]:
    """The regions in the order of `flow`: the prompt's, then masked and revealed."""
    regions = dict.fromkeys(str(r) for r in trace.data["region"].values if r != _ANSWER)
    return [*regions, MASKED, REVEALED]


def members(trace: Trace, step: int) -> Bool[np.ndarray, "s r"]:
    """Return the region of each position present at a kept step, one-hot: (position, region)."""
    size = present(trace, step)
    region = trace.data["region"].values[:size].astype(str)
    masked = trace.data["masked"].sel(step=step).values[:size]
    label = np.where(region == _ANSWER, np.where(masked, MASKED, REVEALED), region)
    return label[:, None] == np.array(names(trace))


def tokens(trace: Trace) -> Int[np.ndarray, "t r"]:
    """How many positions each region has at each kept step."""
    steps = [members(trace, int(t)).sum(0) for t in trace.data["step"].values]
    return np.stack(steps) if steps else np.zeros((0, len(names(trace))), np.int64)


# Uniform attention


def spread(
    state: Float[np.ndarray, "s r"],
    last: Int[np.ndarray, " s"],
    first: Int[np.ndarray, " s"] | None = None,
) -> Float[np.ndarray, "s r"]:
    """Uniform attention over the visible keys, times `state`: for each row a mean of what it sees, from
    the key `first` (0) to `last`."""
    total = np.cumsum(state, axis=0)
    if first is None:
        return total[last] / (last + 1)[:, None]
    before = np.concatenate([np.zeros_like(total[:1]), total])[first]
    return (total[last] - before) / (last - first + 1)[:, None]


def _evenly(
    trace: Trace, state: Float[np.ndarray, "s r"], step: int, reach: int | None
) -> Float[np.ndarray, "s r"]:
    last = last_visible(trace, len(state), step, reach)
    return spread(state, last, None if reach is None else first_visible(len(state), reach))


def _reaches(trace: Trace) -> list[int | None]:
    """Of the kept layers."""
    layers = [int(x) for x in trace.data["layer"].values]
    known = reaches(trace.info, max(layers, default=-1) + 1)
    return [known[layer] for layer in layers]


def uniform_received(trace: Trace) -> xr.DataArray:
    """`trace.received` under uniform attention, the same for all heads: (step[, layer], key)."""
    return trace.null * trace.data["rows_counted"].sum("group") / trace.data["visible"]


def flow_null(trace: Trace) -> xr.DataArray:
    """`trace.flow` under uniform attention: (step, source, target), with local layers also by layer; NaN
    from an empty region."""
    local, nulls = is_local(trace.data), []
    for step in (int(t) for t in trace.data["step"].values):
        inside = members(trace, step).astype(np.float64)
        every = [
            _from_regions(inside, _evenly(trace, inside, step, reach))
            for reach in (_reaches(trace) if local else [None])
        ]
        nulls.append(np.stack(every) if local else every[0])
    by_layer = ("layer",) if local else ()
    return _labelled(trace, nulls, ("step", *by_layer, "source", "target"))


def row_null(trace: Trace) -> xr.DataArray:
    """Return `row_flow` under uniform attention, for the row that predicted each token.

    (event, target), or (event, layer, target) if some layers see a window.
    """
    steps, rows = _events(trace)
    local = is_local(trace.data)
    layers = _reaches(trace) if local else [None]
    nulls = np.zeros((len(steps), len(layers), len(names(trace))))
    for step in np.unique(steps):
        inside, here = members(trace, int(step)), steps == step
        for i, reach in enumerate(layers):
            stop = last_visible(trace, len(inside), int(step), reach)[rows[here]] + 1
            start = first_visible(len(inside), reach)[rows[here]]
            spans = zip(start, stop, strict=True)
            nulls[here, i] = [inside[first:end].mean(0) for first, end in spans]
    coords: dict[str, Any] = {"target": names(trace)}
    if not local:
        return xr.DataArray(nulls[:, 0], coords, ("event", "target"))
    layer = trace.data["layer"].values
    return xr.DataArray(nulls, coords | {"layer": layer}, ("event", "layer", "target"))


def rows_of_events(trace: Trace) -> Int[np.ndarray, " e"]:
    """The row that predicted each revealed position: its own, or with right-shifted logits the one before."""
    return _events(trace)[1]


def length_share(trace: Trace) -> xr.DataArray:
    """Share of the positions that each region has: (step, target). A rollout's end, bidirectional."""
    count = tokens(trace)
    return _labelled(trace, list(count / count.sum(1, keepdims=True)), ("step", "target"))


def rollout_null(trace: Trace) -> xr.DataArray:
    """`trace.rollout` under uniform attention: (step, layer, source, target).

    The same recursion R_l = ½(Ū + I)R_{l−1}, through all layers below a kept one. A causal row never
    changes once it is there, so all steps of a causal trace share one pass.
    """
    steps = [int(t) for t in trace.data["step"].values]
    layers = [int(x) for x in trace.data["layer"].values]
    shared = trace.info["direction"] == str(Direction.CAUSAL) and not trace.data["masked"].any()
    rolled = _roll(trace, max(steps), layers) if shared and steps else None
    nulls = []
    for step in steps:
        inside = members(trace, step).astype(np.float64)
        states = _roll(trace, step, layers) if rolled is None else rolled
        nulls.append(np.stack([_from_regions(inside, s[: len(inside)]) for s in states]))
    return _labelled(trace, nulls, ("step", "layer", "source", "target"))


def _roll(trace: Trace, step: int, layers: list[int]) -> list[np.ndarray]:
    state = members(trace, step).astype(np.float64)
    states = {}
    for layer, reach in enumerate(reaches(trace.info, max(layers) + 1)):
        state = (_evenly(trace, state, step, reach) + state) / 2
        states[layer] = state
    return [states[layer] for layer in layers]


def _from_regions(inside: np.ndarray, rows: np.ndarray) -> np.ndarray:
    count = inside.sum(0)[:, None]
    return inside.T @ rows / np.where(count > 0, count, np.nan)


def _events(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    events = trace.rows
    row = events["event_position"].values - int(trace.info["shift"])
    return events["event_step"].values, row


def _labelled(trace: Trace, arrays: list[np.ndarray], dims: tuple[str, ...]) -> xr.DataArray:
    known: dict[str, Any] = {d: trace.data[d].values for d in ("step", "layer") if d in dims}
    known |= {d: names(trace) for d in ("source", "target") if d in dims}
    sizes = [len(known[d]) for d in dims]
    array = np.stack(arrays) if arrays else np.zeros(sizes)
    return xr.DataArray(array, dims=dims, coords=known)


# Columns drawn at random


def random_keys(
    k: int, size: int, *, draws: int = 200, seed: int = 0
) -> Int[np.ndarray, "draws k"]:
    """`draws` times k different keys out of `size`, each as likely."""
    if not 0 < k <= size:
        raise UsageError(f"{k} random keys of {size}", f"k goes from 1 to {size}.")
    order = np.random.default_rng(seed).random((draws, size)).argsort(1)
    return order[:, :k]


def matched_keys(
    keys: np.ndarray | Sequence[int], size: int, *, width: int = 8, draws: int = 200, seed: int = 0
) -> Int[np.ndarray, "draws k"]:
    """For each of `keys` another key near it: within `width` positions, or as near as there is one.

    Never one of `keys` itself and none twice in a draw, so that a control of equal size and place
    remains when position alone explains a finding.
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
            left = np.flatnonzero(free)
            away = abs(left - key)
            pick = rng.choice(left[away <= max(width, away.min())])
            drawn[draw, i], free[pick] = pick, False
    return drawn


def mass_on(mass: xr.DataArray, keys: Int[np.ndarray, "draws k"]) -> xr.DataArray:
    """Total mass of each draw's keys: `key` gives way to `draw`. Keys not there yet count nothing."""
    picked = mass.isel(key=xr.DataArray(keys, dims=("draw", "picked")))
    return picked.sum("picked").drop_vars("key", errors="ignore")
