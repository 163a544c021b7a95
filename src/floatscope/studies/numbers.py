"""From a measure's finding to one number for a sentence: over layers, with interval and null."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from ..measures.library.dispersion import Dispersion
from ..measures.result import Result, bounds_of
from ..stats.intervals import difference, entropy_difference, mean, pair
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
    return Number(label, value, low, high, null, unit, int(there.sum()))


def overall_difference(
    a: Result | None,
    b: Result | None,
    name: str,
    label: str,
    unit: str = "",
    layers: tuple[slice, slice] = (slice(None), slice(None)),
    *,
    level: float = 0.95,
) -> Number | None:
    """The same of a − b, paired by example; `layers` of the one and of the other."""
    each = [_each(result, name, part) for result, part in zip((a, b), layers, strict=True)]
    if a is None or b is None or each[0] is None or each[1] is None:
        return None
    _, (i, j) = pair(*(_ids(result) for result in (a, b)))
    x, y = each[0][i], each[1][j]
    value, low, high = (float(v) for v in difference(x, y, level=level))
    return Number(label, value, low, high, 0.0, unit, int((~np.isnan(x - y)).sum()))


def along(
    result: Result | None,
    name: str,
    label: str,
    unit: str = "",
    layers: slice = slice(None),
    *,
    level: float = 0.95,
) -> Number | None:
    """A dispersion, which exists over examples only: of the mean over layers, jointly."""
    if result is None or name not in result.data or result.n < 2:
        return None
    value, low, high = Dispersion.over_layers(result, layers, level=level)
    null = float(np.nanmean(_chosen(result.data[f"{name}_null"], layers).values))
    return Number(label, value, low, high, null, unit, result.n)


def along_difference(
    a: Result | None,
    b: Result | None,
    label: str,
    unit: str = "",
    layers: tuple[slice, slice] = (slice(None), slice(None)),
    *,
    level: float = 0.95,
) -> Number | None:
    """Dispersion of a − dispersion of b, means over layers, paired by example."""
    if a is None or b is None:
        return None
    ids, places = pair(*(_ids(result) for result in (a, b)))
    if len(ids) < 2:
        return None
    one, two = (
        Dispersion.labels(result, part)[at]
        for result, part, at in zip((a, b), layers, places, strict=True)
    )
    ends = entropy_difference(one, two, a.measure.bins, level=level, average=True)
    value, low, high = (float(x) for x in ends)
    return Number(label, value, low, high, 0.0, unit, len(ids))


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


def _ids(result: Result) -> list[str]:
    return [str(i) for i in result.examples["id"].values]


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
