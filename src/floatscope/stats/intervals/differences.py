"""Intervals of differences: between paired values of the same examples, and between independent samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Real

from .means import DIFFERENCES, Bounds, mean
from .student import Cells, Interval, flatten_pair


def difference(
    a: Real[np.ndarray, "n *rest"],
    b: Real[np.ndarray, "n *rest"],
    *,
    bounds: Bounds | None = None,
    level: float = 0.95,
    smooth: bool = False,
    clusters: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """Compute the mean of a − b over paired examples, with its interval.

    If all values are 0 or 1, the interval is Tango's, which exists even if no pair differs. `bounds` is the
    range of a and of b; `smooth` and `clusters` are those of `mean`.
    """
    first, second, shape = flatten_pair(a, b)
    gaps = first - second
    if bounds is not None:
        bottom, top = bounds
        ends = (bottom - top, top - bottom)
        parts = mean(gaps, level=level, bounds=ends, smooth=smooth, clusters=clusters)
    else:
        # Differences of shares lie between −1 and 1.
        shares = np.ones(first.shape[1], bool)
        for flat in (first, second):
            shares &= (np.isin(flat, (0, 1)) | np.isnan(flat)).all(0)
        value, low, high = mean(gaps, level=level, clusters=clusters)
        if shares.any():
            _, low[shares], high[shares] = mean(
                gaps[:, shares], level=level, bounds=DIFFERENCES, clusters=clusters
            )
        parts = value, low, high
    value, low, high = (part.reshape(shape) for part in parts)
    return value, low, high


def independent(
    a: Real[np.ndarray, "n *rest"],
    b: Real[np.ndarray, "m *rest"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    smooth: bool = False,
) -> Interval:
    """Compute mean a − mean b of two independent samples, such as the examples of two domains.

    The function `recovered` computes the interval from the intervals of both means. The ends are NaN if one
    of the means has no interval. `bounds` is the range of a and of b.
    """
    first, second = (mean(x, level=level, bounds=bounds, smooth=smooth) for x in (a, b))
    value, low, high = recovered(first, second)
    if bounds is not None:
        reach = bounds[1] - bounds[0]
        low, high = (np.asarray(end.clip(-reach, reach)) for end in (low, high))
    return value, low, high


def recovered(a: Interval, b: Interval, correlation: Cells | float = 0.0) -> Interval:
    """Compute the interval of a − b from both intervals, by recovering variances from their ends.

    The method is MOVER, Zou and Donner (Stat. Med. 27, 2008). The distance of each end from the value takes
    the place of the standard error on its side, so asymmetric intervals stay asymmetric.
    """

    def joined(x: Any, y: Any) -> Any:
        return np.sqrt(np.maximum(x**2 + y**2 - 2 * correlation * x * y, 0))

    (u, u_low, u_high), (v, v_low, v_high) = a, b
    value = np.asarray(u - v)
    low = value - joined(u - u_low, v_high - v)
    high = value + joined(u_high - u, v - v_low)
    return value, np.asarray(low), np.asarray(high)
