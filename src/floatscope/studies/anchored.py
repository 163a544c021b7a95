"""Where an anchor exists, and examples that belong together: the groundwork of claims about movement.

A strongest key there always is; noise has one, and it moves all the time. It is an anchor where it is
stronger than the strongest key of untrained weights almost always is (at that layer, on these
prompts), or, to see what hangs on that choice, where a published rule says so. Untrained weights have
the norms of the trained ones and not their sharpness: a random network whose scores are made larger
passes for one with anchors (docs/findings.md, "What this control does not control").
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..measures.result import Result
from ..stats.intervals import SHARES, pair
from .claim import Number
from .numbers import number

BEYOND = 0.99  # of untrained weights' strongest keys are weaker than an anchor
SOME = 0.2  # of all places must have an anchor, for their movement to say anything
UNTRAINED = "untrained"  # the rule that goes by untrained weights


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


def places(
    result: Result, control: Result | None, rule: str = UNTRAINED, what: str = "place"
) -> np.ndarray | None:
    """The strongest key's place (example, …, layer), NaN where it is no anchor; None without control."""
    lift = _values(result, "lift")
    if rule == UNTRAINED:
        if control is None:
            return None
        of_noise = _values(control, "lift")  # (example, …, layer[, head])
        # Where no control was looked at, there is nothing to be stronger than: no anchor is known.
        of_noise = np.where(np.isnan(of_noise).all(0), np.inf, of_noise)
        level = np.nanquantile(of_noise, BEYOND, axis=0, method="higher")
        is_anchor = lift > level
    else:
        passes = result.examples["passes"].sel(rule=rule)
        is_anchor = _ordered(passes) > 0.5
    return np.where(is_anchor, _values(result, what), np.nan)


def _values(result: Result, name: str) -> np.ndarray:
    return _ordered(result.examples[name])


def _ordered(array) -> np.ndarray:  # type: ignore[no-untyped-def]  # xarray in, numpy out
    order = [d for d in ("example", "revealed", "layer", "head") if d in array.dims]
    return np.asarray(array.transpose(*order).values, float)


def existing(place: np.ndarray, label: str) -> Number | None:
    """The share of all places that have an anchor, example by example."""
    return number((~np.isnan(place)).reshape(len(place), -1).mean(1), label, "%", bounds=SHARES)


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
) -> Number | None:
    """A statistic of examples (their indices) with an interval from leaving one prompt out at a time."""
    each = pseudo_values(statistic, names)
    return None if each is None else number(each, label, unit, level=level)


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
