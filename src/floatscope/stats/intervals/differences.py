"""Intervals of differences: of the same examples, paired, and of two samples of their own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Real

from .means import DIFFERENCES, Bounds, mean
from .student import Cells, Interval, both


def difference(
    a: Real[np.ndarray, "n *rest"],
    b: Real[np.ndarray, "n *rest"],
    *,
    bounds: Bounds | None = None,
    level: float = 0.95,
    smooth: bool = False,
    clusters: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """a − b over the same examples, paired: what varies between examples alike cancels.

    Where both are 0 or 1 throughout it is Tango's interval, which is there even if no pair differs.
    `bounds`: between which ends a and b must lie; `smooth` and `clusters` are those of `mean`.
    """
    one, two, rest = both(a, b)
    gaps = one - two
    if bounds is not None:
        bottom, top = bounds
        ends = (bottom - top, top - bottom)
        parts = mean(gaps, level=level, bounds=ends, smooth=smooth, clusters=clusters)
    else:
        # Cells of shares are known to lie between −1 and 1.
        shares = np.ones(one.shape[1], bool)
        for flat in (one, two):
            shares &= (np.isin(flat, (0, 1)) | np.isnan(flat)).all(0)
        value, low, high = mean(gaps, level=level, clusters=clusters)
        if shares.any():
            _, low[shares], high[shares] = mean(
                gaps[:, shares], level=level, bounds=DIFFERENCES, clusters=clusters
            )
        parts = value, low, high
    value, low, high = (part.reshape(rest) for part in parts)
    return value, low, high


def independent(
    a: Real[np.ndarray, "n *rest"],
    b: Real[np.ndarray, "m *rest"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    smooth: bool = False,
) -> Interval:
    """Mean a − mean b of two samples of their own, such as two domains' examples.

    Each mean has its interval, and from these follows the difference's (`recovered`). NaN where
    either has none. `bounds`: between which ends a and b must lie.
    """
    one, two = (mean(x, level=level, bounds=bounds, smooth=smooth) for x in (a, b))
    value, low, high = recovered(one, two)
    if bounds is not None:
        reach = bounds[1] - bounds[0]
        low, high = (np.asarray(end.clip(-reach, reach)) for end in (low, high))
    return value, low, high


def recovered(a: Interval, b: Interval, correlation: Cells | float = 0.0) -> Interval:
    """The interval of a − b from both intervals: variances recovered from their ends.

    Zou and Donner (Stat. Med. 27, 2008), MOVER: each end's distance from the value stands for the
    standard errors on that side, so lopsided intervals stay lopsided.
    """

    def joined(x: Any, y: Any) -> Any:
        return np.sqrt(np.maximum(x**2 + y**2 - 2 * correlation * x * y, 0))

    (u, u_low, u_high), (v, v_low, v_high) = a, b
    value = np.asarray(u - v)
    low = value - joined(u - u_low, v_high - v)
    high = value + joined(u_high - u, v - v_low)
    return value, np.asarray(low), np.asarray(high)
