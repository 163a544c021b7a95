"""Examples that belong together, anchors that move along an axis, and what leaving one prompt out gives."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..measures.result import Result
from ..stats.intervals import pair
from .claim import Number
from .numbers import number


def names_of(result: Result) -> list[str]:
    """The prompts' names, in order. Several controls trace a prompt several times."""
    return [str(name) for name in result.examples["example"].values]


def by_prompt(values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """One value per prompt: the mean over the controls that traced it. Prompts are what was sampled."""
    of = np.array(names)
    return np.array([np.nanmean(values[of == name]) for name in dict.fromkeys(names)])


def together(*results: Result) -> tuple[list[str], list[np.ndarray]]:
    """Names of the prompts that all have, and where they stand in each; a name twice is an error."""
    return pair(*(names_of(result) for result in results))


def moves(place: np.ndarray, axis: int) -> np.ndarray:
    """Per example, how often the next place along `axis` that has an anchor is another; NaN: no two."""
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


def jackknife(
    statistic: Callable[[np.ndarray], float],
    names: Sequence[str],
    label: str,
    unit: str,
    level: float,
    *,
    bounds: tuple[float, float] | None = None,
) -> Number | None:
    """A statistic of examples (their indices) with an interval from leaving one prompt out at a time.

    Pseudo-values can lie beyond the statistic's bounds; value and interval are clipped to them. Where no
    prompt changes the statistic, the pseudo-values are equal, and the interval is that of a variable
    between the bounds.
    """
    each = pseudo_values(statistic, names)
    if each is None:
        return None
    if bounds is None or np.ptp(each) < 1e-9:
        return number(each, label, unit, level=level, bounds=bounds)
    found = number(each, label, unit, level=level)
    if found is None or found.low is None or found.high is None:
        return found
    value, low, high = (float(np.clip(x, *bounds)) for x in (found.value, found.low, found.high))
    return replace(found, value=value, low=low, high=high)


def pseudo_values(
    statistic: Callable[[np.ndarray], float], names: Sequence[str]
) -> np.ndarray | None:
    """n·θ − (n − 1)·θ₍₋ᵢ₎, which stand for prompts; their mean is the bias-corrected θ.

    A prompt that stands there several times, under several controls, is left out whole.
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
