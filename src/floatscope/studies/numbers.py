"""Reduce a measure's result to one number for a sentence: its mean over layers, with interval and null."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr
from jaxtyping import Float

from ..measures.result import Result, bounds_of
from ..stats.intervals import (
    Sample,
    beyond_controls,
    cluster_means,
    gap_bounds,
    gaps_to_controls,
    mean,
    with_variance,
)
from ..stats.thirds import thirds as layer_thirds
from .claim import Number, format_number


def overall(
    results: Result | Sequence[Result] | None,
    name: str,
    label: str,
    unit: str = "",
    layers: slice = slice(None),
    *,
    level: float = 0.95,
) -> Number | None:
    """Return the mean of a value over examples; each example is averaged over `layers` and other dimensions.

    If `results` is a list of results of untrained networks on the same prompts, average over the networks too
    (`average_networks`). Return None if there is no result, or if no example has a value.
    """
    if results is None:
        return None
    networks = results if isinstance(results, Sequence) else [results]
    arrays = [
        array
        for result in networks
        if (array := _average_by_example(result, name, layers)) is not None
    ]
    if not arrays:
        return None
    values, first = np.stack(arrays), networks[0].data
    bounds = bounds_of(xr.DataArray(values), first[name].attrs)
    if isinstance(results, Sequence):
        return average_networks(values, label, unit, level=level, bounds=bounds)
    null = None
    if f"{name}_null" in first:
        nulls = _chosen(first[f"{name}_null"], layers).values
        null = float(np.nanmean(nulls)) if np.isfinite(nulls).any() else None
    return number(values[0], label, unit, level=level, null=null, bounds=bounds, smooth=True)


def average_networks(
    values: Float[np.ndarray, "k n"],
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
    bounds: tuple[float, float] | None = None,
) -> Number | None:
    """Average values over networks and prompts, with an interval for one further network of the same kind.

    A trained network exceeds untrained networks only if it exceeds the values that a further untrained
    network could have. The interval therefore includes the variance between networks instead of the variance
    of their mean. The interval stays within `bounds`. Return None for fewer than two networks.
    """
    if len(values) < 2:
        return None
    nothing = np.where(np.isnan(values).all(0), np.nan, 0.0)
    interval = np.array(beyond_controls(nothing, -values, level=level), float)
    value, low, high = (float(x) for x in (interval if bounds is None else interval.clip(*bounds)))
    return Number(label, value, low, high, None, unit, int((~np.isnan(nothing)).sum()), level)


def _average_by_example(result: Result, name: str, layers: slice) -> np.ndarray | None:
    """Return a value's mean by example, over `layers` and other dimensions; None if no example has a value.

    The mean is NaN for an example without a value.
    """
    if name not in result.examples:
        return None
    array = _chosen(result.examples[name], layers)
    if "example" not in array.dims:
        array = array.expand_dims("example")
    array = array.transpose("example", ...)
    flat = array.values.reshape(array.sizes["example"], -1)
    defined = ~np.isnan(flat).all(1)
    if not defined.any():
        return None
    means = np.full(len(flat), np.nan)
    means[defined] = np.nanmean(flat[defined], axis=1)
    return means


def number(
    values: np.ndarray,
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
    null: float | None = None,
    bounds: tuple[float, float] | None = None,
    smooth: bool = False,
    clusters: Sequence[str] | np.ndarray | None = None,
) -> Number | None:
    """Return the mean of one value per example, with an interval; None if no example has a value.

    `bounds` is the range of a value, such as SHARES or DIFFERENCES of `stats.intervals`. `smooth` is passed
    to `stats.intervals.mean`. `clusters` has one name per example. With `clusters`, values are first averaged
    within each cluster, and n is the number of clusters.
    """
    values = np.asarray(values, float)
    if clusters is not None:
        values = cluster_means(values, [clusters])
    n = int((~np.isnan(values)).sum())
    if not n:
        return None
    interval = partial(mean, level=level, bounds=bounds, smooth=smooth)
    middle, low, high = (float(x) for x in interval(values))
    return Number(label, middle, low, high, null, unit, n, level, Sample(values, interval))


def subtract_controls(
    trained: Mapping[str, float],
    controls: Sequence[Mapping[str, float]],
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
    bounds: tuple[float, float] | None = None,
    fixed: bool = False,
    most_free: float = np.inf,
) -> Number | None:
    """Return the mean over prompts of trained − controls, with the variance between controls in its interval.

    `trained` and each of `controls` map prompt ids to values. `bounds` and `fixed` have the same meaning as
    in `stats.intervals.beyond_controls`. `most_free` limits the degrees of freedom of the variance between
    controls, for controls that follow a skewed distribution. Return None if no prompt has a value, or if
    there are no controls.
    """
    names = [name for name, value in trained.items() if not np.isnan(value)]
    several = np.array([[control.get(name, np.nan) for name in names] for control in controls])
    if not names or not np.isfinite(several).any():
        return None
    trained_values = np.array([[trained[name]] for name in names])
    gaps, variance, free = gaps_to_controls(trained_values, several[..., None], fixed=fixed)
    interval = partial(
        with_variance,
        variance=variance,
        free=np.minimum(free, most_free),
        level=level,
        bounds=gap_bounds(trained_values, gaps, bounds),
    )
    middle, low, high = (float(x[0]) for x in interval(gaps))
    n = int((~np.isnan(gaps)).sum())
    sample = Sample(gaps[:, 0], interval)
    return Number(label, middle, low, high, 0.0, unit, n, level, sample)


def lifted(number: Number) -> Number:
    """Return a share's lift: the share and the ends of its interval, divided by its null."""
    null = number.null or float("nan")
    low, high = (None if x is None else x / null for x in (number.low, number.high))
    return Number(f"{number.label}, lift", number.value / null, low, high, 1.0, "×", number.n)


def _chosen(array, layers: slice):  # type: ignore[no-untyped-def]  # xarray in, xarray out
    return array.isel(layer=layers) if "layer" in array.dims else array


def third(result: Result | None, part: str) -> slice:
    """Return the slice of a result's layers that `part` names: "first" or "last" third."""
    return layer_thirds(0 if result is None else int(result.data.sizes.get("layer", 0)))[part]


def thirds(results: Mapping[str, Result], name: str) -> Iterator[tuple[str, str, str]]:
    """Yield each model's name, and its mean value in the first and the last third of its layers, as text."""
    for model, result in results.items():
        first, last = (overall(result, name, "", "×", third(result, w)) for w in ("first", "last"))
        if first and last:
            yield model, format_number(first), format_number(last)
