"""Select the strongest keys of each step, and compute their share of attention at later steps.

The attention is that of the rows that decide a token: the rows still masked, or the newest row of a causal
model.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float, Int

from ..errors import UsageError
from ..sequences.direction import Direction
from ..trace import Trace

LAGS = (1, 2, 4, 8, 16)
BUDGETS = (0.05, 0.1, 0.2, 0.3, 0.5)
FIRST = 4  # first keys, always included in a sink-and-window set


def check_shares(name: str, shares: Sequence[float]) -> None:
    """Raise UsageError if there are no shares, or if a share is not above 0 and up to 1."""
    if not shares or not all(0 < share <= 1 for share in shares):
        raise UsageError(
            f"{name} = {shares}", "Use shares above 0 and up to 1, such as (0.1, 0.3)."
        )


def deciding_mass(trace: Trace) -> xr.DataArray:
    """Return the share of attention that each key receives from the deciding rows of each step.

    In a diffusion model, the deciding rows are those still masked. In a causal model, they are the rows
    computed since the previous kept step; at the first kept step, all rows computed so far.

    Returns:
        The shares, (step, layer, head, key); 0 for keys that do not exist yet.
    """
    if Direction(trace.info["direction"]) is not Direction.CAUSAL:
        return trace.mass_from("masked").fillna(0).transpose("step", "layer", "head", "key")
    # Sums are over all rows so far, so their differences belong to the new rows.
    sums = trace.data["column_sum"].astype(np.float64).sum("group")
    sums = sums.fillna(0).transpose("step", "layer", "head", "key")
    rows = trace.data["rows_counted"].sum("group")
    new, count = sums.copy(), rows.copy()
    new[1:] = sums.values[1:] - sums.values[:-1]
    count[1:] = rows.values[1:] - rows.values[:-1]
    return (new.clip(min=0) / count).astype(np.float32)


def present_keys(trace: Trace) -> Bool[np.ndarray, "t k"]:
    """Return which keys exist at each kept step."""
    return np.asarray(trace.data["visible"].transpose("step", "key").values > 0)


def set_sizes(present: Bool[np.ndarray, "t k"], budgets: Sequence[float]) -> Int[np.ndarray, "t b"]:
    """Return the number of keys of each budget at each step: a share of the present keys, rounded up."""
    counts = present.sum(-1)[:, None] * np.asarray(budgets)
    return np.maximum(np.ceil(counts - 1e-9), 1).astype(np.int64)


def top_sets(
    mass: Float[np.ndarray, "*h t k"],
    present: Bool[np.ndarray, "t k"],
    sizes: Int[np.ndarray, "t b"],
) -> Bool[np.ndarray, "*h t b k"]:
    """Return the strongest keys of each step, for several set sizes; ties go to the first keys."""
    mass = np.where(present, mass, -1.0)
    keys = mass.shape[-1]
    sets = np.empty((*mass.shape[:-1], sizes.shape[1], keys), bool)
    for step, counts in enumerate(sizes):
        rows = mass[..., step, :]
        ordered = np.partition(rows, sorted({keys - int(k) for k in counts}), axis=-1)
        for place, k in enumerate(counts):
            least = ordered[..., keys - k, None]
            chosen = rows > least
            ties = rows == least
            room = k - chosen.sum(-1, keepdims=True)
            sets[..., step, place, :] = chosen | (ties & (ties.cumsum(-1) <= room))
    return sets


def window_sets(trace: Trace, sizes: Int[np.ndarray, "t b"]) -> Bool[np.ndarray, "t b k"]:
    """Return sets of the first keys and the keys nearest to a deciding row, for each step and size."""
    present = present_keys(trace)
    masked = trace.data["masked"].transpose("step", "key").values
    causal = Direction(trace.info["direction"]) is Direction.CAUSAL
    position = np.arange(present.shape[1])
    sets = np.zeros((*sizes.shape, len(position)), bool)
    for step, there in enumerate(present):
        rows = np.array([there.sum() - 1]) if causal else np.flatnonzero(masked[step] & there)
        after = np.searchsorted(rows, position)
        left = position - rows[np.maximum(after - 1, 0)]
        right = rows[np.minimum(after, len(rows) - 1)] - position
        distance = np.minimum(abs(left), abs(right))
        order = np.lexsort((position, distance, position >= FIRST, ~there))
        for place, k in enumerate(sizes[step]):
            sets[step, place, order[:k]] = True
    return sets


def retained_by(
    sets: Bool[np.ndarray, "*h s b k"], mass: Float[np.ndarray, "*h t k"]
) -> Float[np.ndarray, "*h s t b"]:
    """Return the share of attention at each step t on the set of keys of each reference s and budget b."""
    *heads, states, budgets, keys = sets.shape
    flat = sets.reshape(*heads, states * budgets, keys).astype(mass.dtype)
    shares = flat @ np.swapaxes(mass, -1, -2) / mass.sum(-1)[..., None, :]
    return np.moveaxis(shares.reshape(*heads, states, budgets, -1), -2, -1)


def later(matrix: Float[np.ndarray, "*h s t b"]) -> Float[np.ndarray, "*h s t b"]:
    """Return a reference × step matrix with NaN at steps before the reference."""
    steps = np.arange(matrix.shape[-2])
    return np.where((steps >= steps[:, None])[..., None], matrix, np.nan)


def by_lag(
    matrix: Float[np.ndarray, "*h s t b"], lags: Sequence[int]
) -> Float[np.ndarray, "*h n b"]:
    """Average a reference × step matrix over all pairs that are `lag` kept steps apart, for each lag."""
    means = []
    for lag in lags:
        pairs = np.diagonal(matrix, lag, axis1=-3, axis2=-2)  # (*h, b, pair)
        means.append(pairs.mean(-1) if pairs.shape[-1] else np.full(pairs.shape[:-1], np.nan))
    return np.stack(means, axis=-2)
