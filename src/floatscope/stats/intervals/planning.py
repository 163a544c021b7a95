"""Estimate how many examples a significant result would require, by resampling existing examples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Real

from .student import Interval

MANY = 10_000  # largest number of examples that is reported
_DRAWS = 200
_FIRST = 16  # number of examples at which the search starts


@dataclass(frozen=True, eq=False)
class Sample:
    """Values of a sample by example, and the function that computes their interval.

    `interval` takes values of shape (examples, draws, *cells) and returns an interval for each draw.
    """

    values: Real[np.ndarray, "n *cells"]
    interval: Callable[[np.ndarray], Interval]


def needed(sample: Sample, target: float, *, power: float = 0.8) -> int | None:
    """Find the smallest number of examples at which the interval excludes `target` with the given power.

    Examples are drawn with replacement from the sample, as if it were the population, and the same interval
    is computed from each of 200 draws. The seed is fixed, so the same sample gives the same number. The
    result is None if more than 10,000 examples would be needed, or if the sample has fewer than two examples.
    """
    values = np.asarray(sample.values, float)
    values = values[~np.isnan(values).reshape(len(values), -1).any(1)]
    if len(values) < 2:
        return None
    draws = _DRAWS if np.ptp(values) > 0 else 1  # equal values give the same interval in every draw

    def decide(size: int) -> bool:
        chosen = np.random.default_rng(0).integers(0, len(values), (size, draws))
        _, low, high = sample.interval(values[chosen])
        return bool(((low > target) | (high < target)).mean() >= power)

    enough = _FIRST
    while not decide(enough):
        if enough == MANY:
            return None
        enough = min(2 * enough, MANY)
    too_few = 1 if enough == _FIRST else enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if decide(middle) else (middle, enough)
    return enough
