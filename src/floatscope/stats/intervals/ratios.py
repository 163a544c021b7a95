"""Intervals of ratios of means over the same examples."""

import numpy as np
from jaxtyping import Real

from .student import Interval, flatten_pair, moments, skewed, varies


def ratio(
    a: Real[np.ndarray, "n *rest"], b: Real[np.ndarray, "n *rest"], *, level: float = 0.95
) -> Interval:
    """Compute mean a / mean b over paired examples, with its interval; incomplete pairs are dropped.

    The interval is computed for logarithms, where a ratio is a difference: the jackknife of ln(mean a / mean
    b) gives its standard error and skewness, and the ends are transformed back. The ends are NaN if a mean is
    not above 0, or if it would not be above 0 without one of the examples. Such a ratio is unbounded; use
    `difference` instead.
    """
    first, second, shape = flatten_pair(a, b)
    absent = np.isnan(first) | np.isnan(second)
    first, second = (np.where(absent, np.nan, x) for x in (first, second))
    n = (~absent).sum(0)
    (total, reduced), (total_b, reduced_b) = (
        (t := np.nansum(x, 0), t - x) for x in (first, second)
    )
    positive = (n > 1) & (total > 0) & (total_b > 0)
    positive &= (absent | (reduced > 0)).all(0) & (absent | (reduced_b > 0)).all(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = total / total_b
        logarithm = np.log(np.where(positive, value, 1.0))
        without = np.log(np.where(positive, reduced / reduced_b, np.nan))
        influence = (n - 1) * (np.nansum(without, 0) / n - without)
    _, error, skewness, count = moments(influence)
    positive &= varies(influence)
    ends = skewed(logarithm, error, skewness, count - 1, level)
    low, high = (np.where(positive, np.exp(end), np.nan) for end in ends)
    return value.reshape(shape), low.reshape(shape), high.reshape(shape)
