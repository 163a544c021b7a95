"""Statistics of the order in which positions are revealed: ranks, bias towards the ends, first quarter.

The functions take plain arrays and return numbers. The measures choose the positions.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

NAN = float("nan")


def last_reveal(change: Int8[np.ndarray, "t n"]) -> Float[np.ndarray, " n"]:
    """Return the step of each position's last reveal; NaN if never revealed, or masked at the end."""
    when = np.full(change.shape[1], np.nan)
    for t, row in enumerate(change):
        when[row == 1] = t
        when[row == 2] = np.nan
    return when


def ranks(values: np.ndarray) -> Float[np.ndarray, " n"]:
    """Rank values from 1; equal values get their mean rank."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]


def shuffled(rank: Float[np.ndarray, " n"], block: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return the expected ranks of a random order within blocks: the mean rank of each position's block."""
    _, inverse, count = np.unique(block, return_inverse=True, return_counts=True)
    return (np.bincount(inverse, rank) / count)[inverse] if len(rank) else rank


def boundary(rank: Float[np.ndarray, " n"]) -> float:
    """Return the mean rank of the outer fifths minus that of the rest, divided by the number of positions."""
    n = len(rank)
    fifth = n // 5
    if not fifth:
        return NAN
    place = np.arange(n)
    outer = (place < fifth) | (place >= n - fifth)
    return float((rank[outer].mean() - rank[~outer].mean()) / n)


def left_to_right(rank: Float[np.ndarray, " n"], spread: Float[np.ndarray, " n"]) -> float:
    """Correlate position and rank, scaled by the standard deviation of `spread` instead of `rank`.

    The result is NaN if all positions are revealed at once, or if there are fewer than three positions.
    """
    if len(rank) < 3 or np.ptp(spread) == 0:
        return NAN
    place = np.arange(len(rank))
    covariance = ((place - place.mean()) * (rank - rank.mean())).mean()
    return float(covariance / (place.std() * spread.std()))


def first_quarter(
    step: Int[np.ndarray, " n"], marked: Bool[np.ndarray, " n"]
) -> tuple[float, float]:
    """Return the share of marked positions among the first quarter of reveals, and among all.

    If several positions are revealed together at the end of the quarter, each of them counts with the
    fraction of them that fits into the quarter. The result is NaN for fewer than four reveals.
    """
    n = len(step)
    if n < 4:
        return NAN, NAN
    quarter = int(np.ceil(n / 4))
    last = np.sort(step)[quarter - 1]
    before, tied = step < last, step == last
    weight = before + tied * (quarter - before.sum()) / tied.sum()
    return float((weight * marked).sum() / quarter), float(marked.mean())
