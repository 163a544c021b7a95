"""Pair prompts between results, count moves of anchors, and compute intervals by resampling prompts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..measures.result import Result
from ..stats.intervals import pair
from .claim import Number
from .numbers import number

_HALVES = 300  # random halves of the examples


def names_of(result: Result) -> list[str]:
    """Return the prompt id of each example, in order; an id of several controls occurs once per control."""
    return [str(name) for name in result.examples["example"].values]


def by_prompt(values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return one value per prompt: the mean over the examples with the same prompt id, ignoring NaN."""
    prompts = np.array(names)
    return np.array([np.nanmean(values[prompts == name]) for name in dict.fromkeys(names)])


def align_prompts(*results: Result) -> tuple[list[str], list[np.ndarray]]:
    """Return the ids of the prompts that all results share, and the indices of these prompts in each result.

    Raise an error if an id occurs twice in one result.
    """
    return pair(*(names_of(result) for result in results))


def count_moves(place: np.ndarray, axis: int) -> np.ndarray:
    """Return, by example, the share of pairs of neighbouring anchors along `axis` that differ.

    The share is NaN for an example without a pair.

    Args:
        place: Position of the anchor, (example, …); NaN where there is no anchor. NaN values are skipped.
        axis: The axis along which anchors are compared, such as layers.
    """
    ahead = np.moveaxis(place, axis, -1)
    flat = ahead.reshape(len(place), -1, ahead.shape[-1])  # (example, …, along)
    changed, pairs = np.zeros(len(flat)), np.zeros(len(flat))
    for example, lines in enumerate(flat):
        for line in lines:
            places = line[~np.isnan(line)]
            changed[example] += (np.diff(places) != 0).sum()
            pairs[example] += max(len(places) - 1, 0)
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
    """Compute a statistic of n examples, with an interval from random halves of the examples.

    `statistic` is called with the indices of the examples to use. Use this function for a statistic that
    selects before it measures, such as a mean over layers with a real anchor. If one example is left out, the
    selection may change completely, and a jackknife multiplies this change by n. With random halves, the
    estimate of the variance is consistent (Shao and Wu, Ann. Statist. 17, 1989: the delete-d jackknife with d
    = n/2). The contribution of an example is the difference between the mean of the halves with this example
    and the mean of the halves without this example. The interval is computed from the contributions. It is at
    least as wide as the spread of the halves implies. Return None for fewer than 4 examples, or if the
    statistic is not finite.
    """
    full_value = statistic(np.arange(n))
    if n < 4 or not np.isfinite(full_value):
        return None
    rng = np.random.default_rng(0)
    inside = rng.permuted(np.tile(np.arange(n) < n // 2, (_HALVES, 1)), axis=1)  # (half, example)
    half_values = np.array([statistic(np.flatnonzero(half)) for half in inside])
    finite = np.isfinite(half_values)
    if finite.mean() < 0.9:  # too few halves have a value
        return Number(label, full_value, None, None, None, unit, n, level)
    half_values, inside = half_values[finite], inside[finite]
    with_it, without = (half_values @ members / members.sum(0) for members in (inside, ~inside))
    contributions = full_value + (with_it - without) * (n - 1) / 2
    contributions = contributions - contributions.mean() + full_value
    # If no example changes the statistic, use the interval of a variable between the bounds.
    if np.ptp(contributions) < 1e-9:
        return number(contributions, label, unit, level=level, bounds=bounds)
    estimate = number(contributions, label, unit, level=level)
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    wider = max(1.0, float(half_values.std(ddof=1) / (contributions.std(ddof=1) / np.sqrt(n))))
    low, high = (full_value + wider * (end - full_value) for end in (estimate.low, estimate.high))
    low, high = (float(np.clip(end, *bounds)) for end in (low, high))
    return replace(estimate, value=float(np.clip(full_value, *bounds)), low=low, high=high)


def pseudo_values(
    statistic: Callable[[np.ndarray], float], names: Sequence[str]
) -> np.ndarray | None:
    """Return the jackknife's pseudo-values n·θ − (n − 1)·θ₍₋ᵢ₎ of a statistic θ, one per prompt i of n.

    θ₍₋ᵢ₎ is the statistic without the examples of prompt i; a prompt may have one example per control. The
    mean of the pseudo-values is θ corrected for bias. Return None for fewer than two prompts, or if a value
    of the statistic is not finite.
    """
    indices, prompt_ids = np.arange(len(names)), np.array(names)
    prompts = list(dict.fromkeys(names))
    n = len(prompts)
    full_value = statistic(indices)
    without = (
        np.array([statistic(indices[prompt_ids != prompt]) for prompt in prompts])
        if n > 1
        else np.empty(0)
    )
    if not np.isfinite(full_value) or n < 2 or not np.isfinite(without).all():
        return None
    pseudo: np.ndarray = n * full_value - (n - 1) * without
    return pseudo
