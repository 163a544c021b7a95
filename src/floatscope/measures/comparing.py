"""compare(a, b, …): findings of one measure on several models, side by side.

Layers are aligned by relative depth, everything else by name; what has no counterpart is left out
and listed in `data.attrs["left_out"]`, never filled in. It compares Results, not traces, and gives
differences with intervals, not verdicts.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import xarray as xr

from ..errors import UsageError
from ..stats.intervals import difference, independent, mean, pair
from .align import aligned
from .comparison import Comparison
from .result import Result, bounds_of


def compare(
    *results: Result, paired: bool = False, labels: Sequence[str] | None = None
) -> Comparison:
    """Two or more Results of one measure, configured alike.

    `paired=True`: examples are paired by what was asked (`Trace.prompt`, or a run's question ids), and
    intervals of differences are over the examples' differences. A prompt that stands twice in a result
    is an error; one that not all have is left out and counted. Otherwise each model's examples are a
    sample of their own. Where layer counts differ, values are interpolated onto the depths of the
    model with the fewest layers (first kept layer 0, last 1). Heads of different models do not
    correspond: their mean is compared.
    """
    _check(results)
    names, first = _labels(results, labels), results[0]
    left: list[str] = []
    places = _paired(results, left) if paired else None
    together, kept = xr.Dataset(), []
    for name in dict.fromkeys(v for r in results for v in r.values):
        if not all(name in r.values and name in r.examples for r in results):
            left.append(f"{name}: not in all, or not a mean over examples")
            continue
        parts = aligned(_chosen(results, name, places), results, left, name)
        if parts is None:
            continue
        kept.append(name)
        dims = ("model", *parts[0].dims[1:])
        coords = {str(k): v for k, v in parts[0].coords.items() if k in dims} | {"model": names}
        units = {"units": str(first.data[name].attrs.get("units", ""))}
        bounds = [bounds_of(p, r.data[name].attrs) for p, r in zip(parts, results, strict=True)]
        alone = [mean(p.values, bounds=b, smooth=True) for p, b in zip(parts, bounds, strict=True)]
        for i, end in enumerate(("", "_low", "_high")):
            together[name + end] = xr.DataArray(
                np.stack([x[i] for x in alone]), coords, dims, attrs=units
            )
        if all(f"{name}_null" in r.examples for r in results):
            whole = [
                null.broadcast_like(value).transpose(*value.dims)
                for null, value in zip(
                    _chosen(results, f"{name}_null", places),
                    _chosen(results, name, places),
                    strict=True,
                )
            ]
            nulls = aligned(whole, results, [], name)
            means = [mean(p.values)[0] for p in nulls or []]
            together[f"{name}_null"] = xr.DataArray(np.stack(means), coords, dims, attrs=units)
        common = bounds[0] if len(set(bounds)) == 1 else None
        gaps = [
            (difference if paired else independent)(
                parts[0].values, p.values, bounds=common, smooth=True
            )
            for p in parts[1:]
        ]
        dims, coords = ("versus", *dims[1:]), coords | {"versus": names[1:]}
        coords.pop("model")
        for i, end in enumerate(("", "_low", "_high")):
            together[f"{name}_difference{end}"] = xr.DataArray(
                np.stack([g[i] for g in gaps]), coords, dims, attrs=units
            )
    together.attrs = {
        "measure": repr(first.measure),
        "n": [r.n if places is None else len(places[0]) for r in results],
        "interval": "95 % intervals, differences "
        + ("paired" if paired else "from independent samples"),
        "left_out": "; ".join(dict.fromkeys(left)) or "nothing",
    }
    return Comparison(together, tuple(results), kept)


def _check(results: Sequence[Result]) -> None:
    if len(results) < 2:
        raise UsageError(f"{len(results)} result to compare", "Give two or more.")
    first = results[0].measure
    for other in (r.measure for r in results[1:]):
        if type(other) is not type(first):
            raise UsageError(
                f"different measures: {type(first).__name__} and {type(other).__name__}",
                "Compare results of one measure.",
            )
        if other != first:
            differ = [
                f.name for f in fields(first) if getattr(first, f.name) != getattr(other, f.name)
            ]
            raise UsageError(
                f"{type(first).__name__} was configured differently: {', '.join(differ)}",
                "A comparison needs the same rule and settings for every model.",
            )


def _paired(results: Sequence[Result], left: list[str]) -> list[np.ndarray]:
    """Where each result has the examples that all have."""
    for result in results:
        if "example" not in result.examples.coords:
            raise UsageError(
                f"expected examples with ids, but a result of {result.model or 'a model'} has none",
                "Measure traces, or give result.examples a coordinate `example`; or use paired=False.",
            )
    ids = [[str(i) for i in r.examples["example"].values] for r in results]
    common, places = pair(*ids)
    for result, names in zip(results, ids, strict=True):
        if len(names) > len(common):
            left.append(f"{len(names) - len(common)} of {len(names)} examples of {result.model}")
    return places


def _chosen(
    results: Sequence[Result], name: str, places: list[np.ndarray] | None
) -> list[xr.DataArray]:
    arrays = [r.examples[name] for r in results]
    if places is None:
        return arrays
    return [
        a.isel(example=at) if "example" in a.dims else a
        for a, at in zip(arrays, places, strict=True)
    ]


def _labels(results: Sequence[Result], labels: Sequence[str] | None) -> list[str]:
    if labels is not None and len(set(labels)) != len(results):
        raise UsageError(
            f"{len(set(labels))} different labels for {len(results)} results", "Give one each."
        )
    names: list[str] = []
    for name in labels or [r.model or "model" for r in results]:
        names.append(name if name not in names else f"{name} ({len(names) + 1})")
    return names
