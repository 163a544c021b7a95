"""Intervals of means over examples, cell by cell, with a method chosen by the kind of values.

The formulas are in shares.py (shares), student.py (Student's t and skewness) and betting.py (betting
intervals).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Real

from ...errors import UsageError
from .betting import bounded
from .shares import paired_shares, share
from .student import Cells, Interval, flattened, student, varies

Flat = Float[np.ndarray, "n c"]
Which = Bool[np.ndarray, " c"]
Bounds = tuple[float, float]
SHARES: Bounds = (0, 1)
DIFFERENCES: Bounds = (-1, 1)  # of shares
COUNTS: Bounds = (0, np.inf)
_EDGE = 1e-6  # of the range: values this close to a bound are on the bound
# Values within such a window are bunched: 10 % of the range, but at most 0.1 (ten percentage points of a
# share) and at least 2 % of the range.
_BAND, _MOST_BAND, _LEAST_BAND = 0.1, 0.1, 0.02
_FEW = 5  # number of values outside the window from which on their spread is used
_LARGE = 200  # examples, above which bets hardly ever give nearer ends than Student's t


def mean(
    values: Real[np.ndarray, "n *rest"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    smooth: bool = False,
    clusters: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """Compute the mean over examples with its interval; NaN means "does not apply" and is not counted.

    - all values 0 or 1: a share, with Clopper and Pearson's interval
    - all values −1, 0 or 1: a difference of paired shares, with Tango's interval
    - all other values: Student's t with Hall's correction for skewness

    Args:
        values: one value per example, or one per example and cell.
        level: nominal coverage, default 0.95.
        bounds: range of the values: (0, 1) for shares, (−1, 1) for differences of shares, (0, inf) for
            counts. The interval then stays inside the bounds. With finite bounds, bunched values have a
            betting interval (`bounded`), which covers the mean of any variable between the bounds,
            because bunched values do not show how far away the next value could be. Values are bunched
            if most of them, and all but four or fewer, lie within 0.1 for shares and their differences,
            within 10 % of a smaller range, or within 2 % of a range wider than 5. For other values, each
            end is the nearer of the betting interval's and Student's. Without finite bounds, values that
            are all equal have no interval.
        smooth: True if each value averages many parts of an example, such as rows and heads, so that
            values are close to each other without being discrete. Only equal values are then bunched.
        clusters: an id per example. Examples of one cluster are not independent, so a cluster's mean
            counts once, and n is the number of clusters.
    """
    if clusters is not None:
        return hierarchical(values, [clusters], level=level, bounds=bounds, smooth=smooth)
    flat, shape = flattened(values)
    if bounds is not None:
        flat = _within(flat, bounds)
    value, low, high = student(flat, level)
    if bounds is not None:
        low, high = low.clip(*bounds), high.clip(*bounds)
    finite = bounds is not None and np.isfinite(bounds).all()
    if bounds is not None and finite:
        _bet(flat, low, high, bounds, level, smooth)
    if bounds is None or finite:
        ends = bounds or SHARES
        shares = _all_in(flat, *ends) & (varies(flat) | finite)
        _replace_ends(
            low, high, shares, lambda columns: _share_interval(flat[:, columns], ends, level)
        )
    if bounds is None or bounds == DIFFERENCES:
        pairs = _all_in(flat, -1, 0, 1) & (varies(flat) & ~shares | finite)
        _replace_ends(low, high, pairs, lambda columns: _tango(flat[:, columns], level))
    return value.reshape(shape), low.reshape(shape), high.reshape(shape)


def hierarchical(
    values: Real[np.ndarray, "n *rest"],
    levels: Sequence[Sequence[Any] | np.ndarray],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    smooth: bool = False,
) -> Interval:
    """Compute the mean over nested levels, such as the training seed and the template of every example.

    `levels` are ordered from the outermost inwards, each with an id per example. Means are computed from the
    innermost level outwards, so a unit counts once for any number of examples. The interval is over the units
    of the outermost level, with Student's quantile for their number. The inner levels need no additional
    term, because their variation is part of the variation between the outer means.
    """
    means = cluster_means(values, levels)
    return mean(means, level=level, bounds=bounds, smooth=smooth)


def cluster_means(
    values: Real[np.ndarray, "n *rest"], levels: Sequence[Sequence[Any] | np.ndarray]
) -> Float[np.ndarray, "units *rest"]:
    """Compute the means of the outermost units, from the innermost level outwards; NaN is not counted."""
    values = np.asarray(values, dtype=np.float64)
    for ids in levels:
        if len(ids) != len(values):
            raise UsageError(
                f"expected an id for each of {len(values)} examples, got {len(ids)}",
                "Give every level as many ids as there are examples.",
            )
    keys = [tuple(str(ids[i]) for ids in levels) for i in range(len(values))]
    for depth in range(len(levels), 0, -1):
        units = list(dict.fromkeys(key[:depth] for key in keys))
        place = {unit: i for i, unit in enumerate(units)}
        unit_of_row = np.array([place[key[:depth]] for key in keys], dtype=int)
        total = np.zeros((len(units), *values.shape[1:]))
        count = np.zeros_like(total)
        np.add.at(total, unit_of_row, np.nan_to_num(values))
        np.add.at(count, unit_of_row, ~np.isnan(values))
        values = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        keys = units
    return values


def _bet(flat: Flat, low: Cells, high: Cells, bounds: Bounds, level: float, smooth: bool) -> None:
    """Replace Student's ends by those of a betting interval if values are bunched.

    For other values, each end is the nearer one of Student's end and the betting interval's end. This choice
    reduces the coverage very little, because the betting interval misses the true mean far less often than
    its level allows.
    """
    extent = bounds[1] - bounds[0]
    band = max(min(_BAND * extent, _MOST_BAND), _LEAST_BAND * extent)
    bunched = _bunched(flat, _EDGE * extent if smooth else band)
    several = (~np.isnan(flat)).sum(0) > 1
    selected = bunched if smooth or len(flat) > _LARGE else several
    if selected.any():
        _, lower, upper = bounded(flat[:, selected], bounds, level)
        alone = bunched[selected]
        low[selected] = np.where(alone, lower, np.maximum(low[selected], lower))
        high[selected] = np.where(alone, upper, np.minimum(high[selected], upper))


def _replace_ends(low: Cells, high: Cells, where: Which, interval: Any) -> None:
    """Replace `low` and `high` in place by the ends that `interval` returns for the cells in `where`."""
    if where.any():
        _, low[where], high[where] = interval(where)


def _share_interval(flat: Flat, bounds: Bounds, level: float) -> Interval:
    """Return the interval of a share, scaled to the mean of values between bounds."""
    bottom, top = bounds
    n = (~np.isnan(flat)).sum(0)
    total = np.nansum((flat - bottom) / (top - bottom), axis=0)
    value, low, high = (bottom + x * (top - bottom) for x in share(total, n, level=level))
    return value, low, high


def _tango(flat: Flat, level: float) -> Interval:
    counts = (flat == 1).sum(0), (flat == -1).sum(0), (~np.isnan(flat)).sum(0)
    return paired_shares(*counts, level=level)


def _all_in(flat: Flat, *allowed: float) -> Which:
    present = ~np.isnan(flat)
    return np.asarray((np.isin(flat, allowed) | ~present).all(0) & (present.sum(0) > 1))


def _bunched(flat: Flat, width: float) -> Which:
    """Return in which columns most values, and all but a few, lie within a window of this width."""
    n = (~np.isnan(flat)).sum(0)
    inside = np.maximum(n - _FEW + 1, n // 2 + 1)
    ordered = np.sort(flat, axis=0)  # NaN last
    bunched = np.zeros(flat.shape[1], bool)
    for first in range(min(_FEW, len(flat))):
        last = first + inside - 1
        end = np.take_along_axis(ordered, np.minimum(last, len(flat) - 1)[None], axis=0)[0]
        bunched |= (last < n) & (end - ordered[first] <= width)
    return np.asarray(bunched & (n > 1))


def _within(flat: Flat, bounds: Bounds) -> Flat:
    """Clip the values to the bounds; raise UsageError if one exceeds them by more than rounding."""
    bottom, top = bounds
    slack = _EDGE * (top - bottom) if np.isfinite(top - bottom) else _EDGE
    wrong = (flat < bottom - slack) | (flat > top + slack)
    if wrong.any():
        raise UsageError(
            f"expected values from {bottom:g} to {top:g}, got {flat[wrong][0]:.6g}",
            "Give the actual bounds of these values, or none.",
        )
    return np.asarray(np.clip(flat, bottom, top))
