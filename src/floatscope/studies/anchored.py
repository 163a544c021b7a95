"""Statistics of anchors by prompt: pairing, moves along an axis, and intervals by leaving out examples."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..measures.result import Result
from ..stats.intervals import pair
from .claim import Number
from .numbers import number

_HALVES = 300  # random halves of the examples


def names_of(result: Result) -> list[str]:
    """Return the prompts' ids, in order; several controls trace a prompt several times."""
    return [str(name) for name in result.examples["example"].values]


def by_prompt(values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Average over the controls that traced a prompt: the prompts are the sample."""
    of = np.array(names)
    return np.array([np.nanmean(values[of == name]) for name in dict.fromkeys(names)])


def together(*results: Result) -> tuple[list[str], list[np.ndarray]]:
    """Return the ids of the prompts that all results share, and their indices in each result.

    A repeated id is an error.
    """
    return pair(*(names_of(result) for result in results))


def moves(place: np.ndarray, axis: int) -> np.ndarray:
    """Return how often the anchor differs from the next anchor along `axis`, by example; NaN below two."""
    ahead = np.moveaxis(place, axis, -1)
    flat = ahead.reshape(len(place), -1, ahead.shape[-1])  # (example, …, along)
    changed, pairs = np.zeros(len(flat)), np.zeros(len(flat))
    for example, lines in enumerate(flat):
        for line in lines:
            there = line[~np.isnan(line)]
            changed[example] += (np.diff(there) != 0).sum()
            pairs[example] += max(len(there) - 1, 0)
    with np.errstate(invalid="ignore"):
        return changed / np.where(pairs > 0, pairs, np.nan)


def by_halves(
    statistic: Callable[[np.ndarray], float],
    n: int,
    label: str,
    unit: str,
    level: float,
    *,
    bounds: tuple[float, float],
) -> Number | None:
    """Compute a statistic of n examples (given their indices), with an interval from random halves.

    It serves statistics that choose before they measure, such as layers with a real anchor. Leaving out one
    example may change the choice completely, and a jackknife multiplies that change by n. Over random halves
    the variance is consistent (Shao and Wu, Ann. Statist. 17, 1989: the delete-d jackknife with d = n/2).
    The contribution of an example is the difference between halves with and without it; the interval is that
    of these contributions, and no narrower than the spread of the halves.
    """
    whole = statistic(np.arange(n))
    if n < 4 or not np.isfinite(whole):
        return None
    rng = np.random.default_rng(0)
    inside = rng.permuted(np.tile(np.arange(n) < n // 2, (_HALVES, 1)), axis=1)  # (half, example)
    found = np.array([statistic(np.flatnonzero(half)) for half in inside])
    known = np.isfinite(found)
    if known.mean() < 0.9:  # too often nothing is left to measure
        return Number(label, whole, None, None, None, unit, n, level)
    found, inside = found[known], inside[known]
    with_it, without = (found @ which / which.sum(0) for which in (inside, ~inside))
    each = whole + (with_it - without) * (n - 1) / 2
    each = each - each.mean() + whole
    if np.ptp(each) < 1e-9:  # no example changes it: the interval of a variable between the bounds
        return number(each, label, unit, level=level, bounds=bounds)
    made = number(each, label, unit, level=level)
    if made is None or made.low is None or made.high is None:
        return made
    wider = max(1.0, float(found.std(ddof=1) / (each.std(ddof=1) / np.sqrt(n))))
    low, high = (whole + wider * (end - whole) for end in (made.low, made.high))
    low, high = (float(np.clip(end, *bounds)) for end in (low, high))
    return replace(made, value=float(np.clip(whole, *bounds)), low=low, high=high)


def pseudo_values(
    statistic: Callable[[np.ndarray], float], names: Sequence[str]
) -> np.ndarray | None:
    """Return the jackknife's pseudo-values n·θ − (n − 1)·θ₍₋ᵢ₎ by prompt; their mean is the bias-corrected θ.

    A prompt that occurs several times, under several controls, is left out as a whole.
    """
    every, of = np.arange(len(names)), np.array(names)
    prompts = list(dict.fromkeys(names))
    n = len(prompts)
    whole = statistic(every)
    without = np.array([statistic(every[of != one]) for one in prompts]) if n > 1 else np.empty(0)
    if not np.isfinite(whole) or n < 2 or not np.isfinite(without).all():
        return None
    each: np.ndarray = n * whole - (n - 1) * without
    return each
