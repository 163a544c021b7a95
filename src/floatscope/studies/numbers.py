"""From a measure's finding to one number for a sentence: over layers, with interval and null."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from ..measures.result import Result, bounds_of
from ..stats.intervals import mean
from ..stats.thirds import thirds as layer_thirds
from .claim import Number, said
from .evidence import Evidence


def overall(
    result: Result | None,
    name: str,
    label: str,
    unit: str = "",
    layers: slice = slice(None),
    *,
    level: float = 0.95,
) -> Number | None:
    """The mean over layers (all, or some) and whatever else the value has, example by example."""
    each = _each(result, name, layers)
    if result is None or each is None:
        return None
    there = ~np.isnan(each)
    bounds = bounds_of(xr.DataArray(each), str(result.data[name].attrs.get("units", "")))
    value, low, high = (float(x) for x in mean(each, bounds=bounds, level=level))
    null = None
    if f"{name}_null" in result.data:
        values = _chosen(result.data[f"{name}_null"], layers).values
        null = float(np.nanmean(values)) if np.isfinite(values).any() else None
    return Number(label, value, low, high, null, unit, int(there.sum()), level)


def _each(result: Result | None, name: str, layers: slice) -> np.ndarray | None:
    """One value per example; NaN where it does not apply, None where it never does."""
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
    return each


def number(
    values: np.ndarray,
    label: str,
    unit: str = "",
    *,
    level: float = 0.95,
    null: float | None = None,
    bounds: tuple[float, float] | None = None,
) -> Number | None:
    """The mean of one value per example, with its interval; None where no example has one.

    `bounds`: between which ends a value must lie, as SHARES and DIFFERENCES of `stats.intervals`.
    """
    values = np.asarray(values, float)
    n = int((~np.isnan(values)).sum())
    if not n:
        return None
    middle, low, high = (float(x) for x in mean(values, level=level, bounds=bounds))
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
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
