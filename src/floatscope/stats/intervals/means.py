"""Intervals of means over examples, cell by cell, by what the values are.

The arithmetic of shares is in shares.py; of t and its skewness in student.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Real

from ...errors import UsageError
from .shares import paired_shares, share
from .student import Cells, Interval, flattened, student, varies

Flat = Float[np.ndarray, "n c"]
Which = Bool[np.ndarray, " c"]
Bounds = tuple[float, float]
SHARES: Bounds = (0, 1)
DIFFERENCES: Bounds = (-1, 1)  # of shares
_EDGE = 1e-6  # of the range: how near a bound is on it
_FEW = 5  # so many values must lie off a bound before their spread is believed


def mean(
    values: Real[np.ndarray, "n *rest"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
    clusters: Sequence[Any] | np.ndarray | None = None,
) -> Interval:
    """The mean over examples with its interval; NaN means "does not apply" there and is not counted.

    - all 0 or 1: a share, with Clopper and Pearson's interval
    - all −1, 0 or 1: a difference of paired shares, with Tango's
    - all else: Student's t with Hall's correction for skewness

    `bounds` says between which ends values must lie: (0, 1) for shares, (−1, 1) for differences of
    shares. Then the interval stays inside, and values that are all alike, or nearly all on one end
    (fewer than 5 are not), have the share's interval around their mean, which is wide enough for any
    variable between these ends: 24 times 1 is [0.858, 1]. Without bounds, values that are all alike
    have no interval, because nothing tells how different they could be.

    `clusters`: an id for each example. Examples of one cluster are not independent, so a cluster's
    mean counts once, and n is the number of clusters.
    """
    if clusters is not None:
        return hierarchical(values, [clusters], level=level, bounds=bounds)
    flat, rest = flattened(values)
    if bounds == DIFFERENCES:
        return of_differences(_within(flat, bounds), rest, level, np.ones(flat.shape[1], bool))
    value, low, high = student(flat, level)
    if bounds is not None:
        flat = _within(flat, bounds)
        low, high = low.clip(*bounds), high.clip(*bounds)
        little = _on_an_end(flat, bounds) | ((~np.isnan(flat)).sum(0) > 1) & ~varies(flat)
        _put(low, high, little, lambda at: _between(flat[:, at], bounds, level))
    else:
        shares = _all_in(flat, 0, 1) & varies(flat)
        _put(low, high, shares, lambda at: _between(flat[:, at], SHARES, level))
        pairs = _all_in(flat, -1, 0, 1) & varies(flat) & ~shares
        _put(low, high, pairs, lambda at: _tango(flat[:, at], level))
    return value.reshape(rest), low.reshape(rest), high.reshape(rest)


def hierarchical(
    values: Real[np.ndarray, "n *rest"],
    levels: Sequence[Sequence[Any] | np.ndarray],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
) -> Interval:
    """The mean where levels repeat, such as [seed of training, template] of every example.

    `levels` go from the outermost inwards, each with an id for every example. Means are taken from
    the inside out, so a unit counts once however many examples it has; the interval is over the units
    of the outermost level, with Student's quantile for their number. Inner levels need no term of
    their own: what varies inside a unit varies its mean.
    """
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
        which = np.array([place[key[:depth]] for key in keys], dtype=int)
        total = np.zeros((len(units), *values.shape[1:]))
        count = np.zeros_like(total)
        np.add.at(total, which, np.nan_to_num(values))
        np.add.at(count, which, ~np.isnan(values))
        values = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        keys = units
    return mean(values, level=level, bounds=bounds)


def of_differences(flat: Flat, rest: tuple[int, ...], level: float, declared: Which) -> Interval:
    """Means of paired differences. `declared`: of shares, so 0 throughout has an interval too."""
    value, low, high = student(flat, level)
    pairs = _all_in(flat, -1, 0, 1) & (varies(flat) | declared)
    _put(low, high, pairs, lambda at: _tango(flat[:, at], level))
    return value.reshape(rest), low.reshape(rest), high.reshape(rest)


def _put(low: Cells, high: Cells, where: Which, interval: Any) -> None:
    """Other ends for some of the cells."""
    if where.any():
        _, low[where], high[where] = interval(where)


def _between(flat: Flat, bounds: Bounds, level: float) -> Interval:
    """The share's interval around the mean of values between bounds."""
    bottom, top = bounds
    n = (~np.isnan(flat)).sum(0)
    total = np.nansum((flat - bottom) / (top - bottom), axis=0)
    value, low, high = (bottom + x * (top - bottom) for x in share(total, n, level=level))
    return value, low, high


def _tango(flat: Flat, level: float) -> Interval:
    counts = (flat == 1).sum(0), (flat == -1).sum(0), (~np.isnan(flat)).sum(0)
    return paired_shares(*counts, level=level)


def _all_in(flat: Flat, *allowed: float) -> Which:
    there = ~np.isnan(flat)
    return (np.isin(flat, allowed) | ~there).all(0) & (there.sum(0) > 1)


def _on_an_end(flat: Flat, bounds: Bounds) -> Which:
    """Columns whose values lie on the ends alone, or all but a few on one of them."""
    bottom, top = bounds
    edge = _EDGE * (top - bottom)
    n = (~np.isnan(flat)).sum(0)
    at_bottom, at_top = (flat <= bottom + edge).sum(0), (flat >= top - edge).sum(0)
    most = np.maximum(at_bottom, at_top)
    return (n > 1) & ((at_bottom + at_top == n) | (most > 0) & (n - most < _FEW))


def _within(flat: Flat, bounds: Bounds) -> Flat:
    """The values, rounding beyond a bound undone."""
    bottom, top = bounds
    slack = _EDGE * (top - bottom)
    wrong = (flat < bottom - slack) | (flat > top + slack)
    if wrong.any():
        raise UsageError(
            f"expected values from {bottom:g} to {top:g}, got {flat[wrong][0]:.6g}",
            "Give the bounds that these values have, or none.",
        )
    return np.clip(flat, bottom, top)
