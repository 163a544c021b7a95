"""Intervals of entropies: how widely positions, or any labels, are spread over a number of bins.

The estimated quantity is the entropy of the examples' distribution divided by ln(bins): 0 if all examples are
in one bin, 1 if they are spread uniformly. The plain entropy of few examples is too small and ignores bins
without any example of the sample. This module corrects both errors.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float, Int

from ...errors import UsageError
from .differences import recovered
from .student import Interval, moments


def entropy(
    labels: Int[np.ndarray, "n *cells"], bins: int, *, level: float = 0.95, average: bool = False
) -> Interval:
    """Compute Miller and Madow's estimate of the entropy of labels over examples, with a jackknife interval.

    Labels are 0 … bins − 1, or −1 for absent. With `average`, the result is one number, the mean over all
    cells; the jackknife leaves an example out of all cells at once, which accounts for their dependence.

    The estimate adds (occupied bins − 1) / 2n to the plain entropy (Miller 1955). Its standard error combines
    the jackknife's, which is 0 if all bins are equally full, with the standard error in that case, where
    2n(ln bins − plain entropy) is χ² with bins − 1 degrees of freedom. The ends use Student's quantile. The
    upper end also allows for missed bins: together, the bins without any of the n examples can still have a
    share of 1 − ((1 − level)/2)^(1/n). The last two terms are not part of the published method, whose
    interval has zero width if all examples share a bin. Terms are combined as the root of the sum of squares.
    """
    parts = _parts(labels, bins, level)
    return _interval(parts.averaged() if average else parts, level)


def entropy_difference(
    a: Int[np.ndarray, "n *cells"],
    b: Int[np.ndarray, "m *others"],
    bins: int,
    *,
    level: float = 0.95,
    average: bool = False,
) -> Interval:
    """Compute the entropy of a minus the entropy of b over the same examples, with its interval.

    The interval combines the intervals of both entropies, with the correlation of the leave-one-out
    influences. `a` and `b` may have different cells if they are averaged.
    """
    if len(a) != len(b):
        raise UsageError(
            f"expected pairs, got {len(a)} and {len(b)} examples", "Pair them by id first."
        )
    first, second = (_parts(x, bins, level) for x in (a, b))
    if average:
        first, second = first.averaged(), second.averaged()
    u, v = first.influence, second.influence
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = (u * v).sum(0) / np.sqrt((u**2).sum(0) * (v**2).sum(0))
    filled = np.nan_to_num(correlation, nan=0.0).reshape(first.shape)
    return recovered(_interval(first, level), _interval(second, level), filled)


@dataclass(frozen=True)
class _Parts:
    value: Float[np.ndarray, " c"]  # divided by ln(bins), as are the fields below
    influence: Float[np.ndarray, "n c"]  # of each example; mean 0, scale of single values
    remainder: Float[np.ndarray, " c"]  # standard error if all bins are equally full
    missed: Float[np.ndarray, " c"]  # largest contribution of missed bins
    shape: tuple[int, ...]

    def averaged(self) -> "_Parts":
        """Average over the cells that have a value; the result has one cell."""
        present = ~np.isnan(self.value)
        if not present.any():
            empty = np.full(1, np.nan)
            return _Parts(empty, np.full((len(self.influence), 1), np.nan), empty, empty, ())
        value, influence, remainder, missed = (
            part[..., present].mean(-1, keepdims=True)
            for part in (self.value, self.influence, self.remainder, self.missed)
        )
        return _Parts(value, influence, remainder, missed, ())


def _interval(parts: _Parts, level: float) -> Interval:
    _, error, _, n = moments(parts.influence)
    half = scipy.special.stdtrit(np.maximum(n - 1, 1), (1 + level) / 2) * np.hypot(
        error, parts.remainder
    )
    value, low = parts.value.clip(0, 1), (parts.value - half).clip(0, 1)
    high = (parts.value + np.hypot(half, parts.missed)).clip(0, 1)
    return value.reshape(parts.shape), low.reshape(parts.shape), high.reshape(parts.shape)


def _parts(labels: Int[np.ndarray, "n *rest"], bins: int, level: float) -> _Parts:
    labels = np.asarray(labels)
    shape = labels.shape[1:]
    flat = labels.reshape(len(labels), int(np.prod(shape)))
    if bins < 2 or (flat >= bins).any():
        raise UsageError(
            f"expected labels below {bins} bins, got {int(flat.max(initial=0))}",
            "Use at least two bins, and as many as there are labels.",
        )
    present = flat >= 0
    counts = ((flat[..., None] == np.arange(bins)) & present[..., None]).sum(0)  # (c, bins)
    n, occupied = counts.sum(-1), (counts > 0).sum(-1)
    logs = scipy.special.xlogy(counts, counts)
    total = logs.sum(-1)
    fewer = np.maximum(counts - 1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        plain = np.log(n) - total / n
        value = plain + (occupied - 1) / (2 * n)
        remaining = (n - 1)[:, None]  # number of examples without one
        out = (
            np.log(remaining)
            - (total[:, None] - logs + scipy.special.xlogy(fewer, fewer)) / remaining
        )
        out += (occupied[:, None] - (counts == 1) - 1) / (2 * remaining)
        without = np.take_along_axis(out, np.maximum(flat, 0).T, -1).T  # (n, c)
        # Jackknife: (n − 1) · (mean of the leave-one-out values − this one), for present examples.
        middle = np.where(present, without, 0.0).sum(0) / n
        influence = np.where(present, (n - 1) * (middle - without), 0.0) * (len(flat) / n)
        unseen = np.where(occupied < bins, 1 - ((1 - level) / 2) ** (1 / n), 0.0)
        missed = scipy.special.entr(unseen) + scipy.special.entr(1 - unseen) - unseen * plain
        missed += unseen * np.log(np.maximum(bins - occupied, 1))
        missed = np.maximum(missed, 0)
        remainder = np.sqrt((bins - 1) / 2) / n
    absent, unit = n < 2, np.log(bins)
    influence[:, absent] = np.nan
    cells = [np.where(absent, np.nan, x / unit) for x in (value, remainder, missed)]
    return _Parts(cells[0], influence / unit, cells[1], cells[2], shape)
