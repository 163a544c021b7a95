"""From a measure's finding to one number for a sentence: over layers, with interval and null."""

from collections.abc import Iterator

import numpy as np

from ..measures.result import Result
from ..stats.intervals import bootstrap, mean
from ..stats.thirds import thirds as layer_thirds
from .claim import Number, said
from .evidence import Evidence


def overall(
    result: Result | None, name: str, label: str, unit: str = "", layers: slice = slice(None)
) -> Number | None:
    """The mean over layers (all, or some) and whatever else the value has, example by example."""
    if result is None or name not in result.examples:
        return None
    array = _chosen(result.examples[name], layers)
    if "example" not in array.dims:
        array = array.expand_dims("example")
    array = array.transpose("example", ...)
    flat = array.values.reshape(array.sizes["example"], -1)
    there = ~np.isnan(flat).all(1)
    if not there.any():
        return None
    each = np.full(len(flat), np.nan)
    each[there] = np.nanmean(flat[there], axis=1)
    mean, low, high = (float(x) for x in bootstrap(each))
    null = None
    if f"{name}_null" in result.data:
        values = _chosen(result.data[f"{name}_null"], layers).values
        null = float(np.nanmean(values)) if np.isfinite(values).any() else None
    return Number(label, mean, low, high, null, unit, int(there.sum()))


def along(
    result: Result | None, name: str, label: str, unit: str = "", layers: slice = slice(None)
) -> Number | None:
    """For values that exist over examples only: the mean of each layer's value and interval ends.

    The mean of interval ends is wider than the interval of the mean: it errs on the careful side.
    """
    if result is None or name not in result.data:
        return None
    ends = [_chosen(result.data[f"{name}{end}"], layers).values for end in ("", "_low", "_high")]
    if not np.isfinite(ends[0]).any():
        return None
    mean, low, high = (float(np.nanmean(x)) if np.isfinite(x).any() else np.nan for x in ends)
    null = None
    if f"{name}_null" in result.data:
        null = float(np.nanmean(_chosen(result.data[f"{name}_null"], layers).values))
    return Number(label, mean, low, high, null, unit, result.n)


def number(
    values: np.ndarray,
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
    null: float | None = None,
) -> Number | None:
    """The mean of one value per example, with its interval; None where no example has one."""
    values = np.asarray(values, float)
    n = int((~np.isnan(values)).sum())
    if not n:
        return None
    middle, low, high = (float(x) for x in mean(values, level=level))
    return Number(label, middle, low, high, null, unit, n, level)


def lifted(number: Number) -> Number:
    """A share over its null, with the interval's ends over it too."""
    null = number.null or float("nan")
    low, high = (None if x is None else x / null for x in (number.low, number.high))
    return Number(f"{number.label}, lift", number.value / null, low, high, 1.0, "×", number.n)


def _chosen(array, layers: slice):  # type: ignore[no-untyped-def]  # xarray in, xarray out
    return array.isel(layer=layers) if "layer" in array.dims else array


def third(result: Result | None, which: str) -> slice:
    """The first or the last third of the layers."""
    return layer_thirds(0 if result is None else int(result.data.sizes.get("layer", 0)))[which]


def thirds(evidence: Evidence, measure: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Each model, and what is said of a multiple in the first and in the last third of its layers."""
    for model, result in evidence.results(measure).items():
        first, last = (overall(result, name, "", "×", third(result, w)) for w in ("first", "last"))
        if first and last:
            yield model, said(first), said(last)
