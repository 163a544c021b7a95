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
from ..stats.intervals import DRAWS, bootstrap, difference
from .align import aligned
from .comparison import Comparison
from .result import Result


def compare(
    *results: Result, paired: bool = False, labels: Sequence[str] | None = None
) -> Comparison:
    """Two or more Results of one measure, configured alike.

    `paired=True` says that example i of one is example i of the others (the same prompts): intervals
    of differences are then over the examples' differences. Otherwise each model's examples are drawn
    again on their own. Where layer counts differ, values are interpolated onto the depths of the
    model with the fewest layers (first kept layer 0, last 1). Heads of different models do not
    correspond: their mean is compared.
    """
    _check(results, paired)
    names, first = _labels(results, labels), results[0]
    left: list[str] = []
    together, kept = xr.Dataset(), []
    for name in dict.fromkeys(v for r in results for v in r.values):
        if not all(name in r.values and name in r.examples for r in results):
            left.append(f"{name}: not in all, or not a mean over examples")
            continue
        parts = aligned([r.examples[name] for r in results], results, left, name)
        if parts is None:
            continue
        kept.append(name)
        dims = ("model", *parts[0].dims[1:])
        coords = {str(k): v for k, v in parts[0].coords.items() if k in dims} | {"model": names}
        units = {"units": first.data[name].attrs.get("units", "")}
        boots = [bootstrap(p.values) for p in parts]
        for i, end in enumerate(("", "_low", "_high")):
            together[name + end] = xr.DataArray(
                np.stack([b[i] for b in boots]), coords, dims, attrs=units
            )
        if all(f"{name}_null" in r.examples for r in results):
            whole = [
                r.examples[f"{name}_null"]
                .broadcast_like(r.examples[name])
                .transpose(*r.examples[name].dims)
                for r in results
            ]
            nulls = aligned(whole, results, [], name)
            means = [bootstrap(p.values)[0] for p in nulls or []]
            together[f"{name}_null"] = xr.DataArray(np.stack(means), coords, dims, attrs=units)
        between = difference if paired else independent
        gaps = [between(parts[0].values, p.values) for p in parts[1:]]
        dims, coords = ("versus", *dims[1:]), coords | {"versus": names[1:]}
        coords.pop("model")
        for i, end in enumerate(("", "_low", "_high")):
            together[f"{name}_difference{end}"] = xr.DataArray(
                np.stack([g[i] for g in gaps]), coords, dims, attrs=units
            )
    together.attrs = {
        "measure": repr(first.measure),
        "n": [r.n for r in results],
        "interval": "95 % intervals, differences "
        + ("paired" if paired else "from independent samples"),
        "left_out": "; ".join(dict.fromkeys(left)) or "nothing",
    }
    return Comparison(together, tuple(results), kept)


def independent(
    a: np.ndarray, b: np.ndarray, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean a − mean b, each drawn again on its own; NaN limits where either has one example."""
    mean = np.asarray(bootstrap(a)[0] - bootstrap(b)[0])
    rng, drawn = np.random.default_rng(seed), np.zeros((DRAWS, mean.size))
    several = np.ones(mean.size, bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        for values, sign in ((a, 1), (b, -1)):
            flat = np.asarray(values, float).reshape(len(values), -1)
            there, n = ~np.isnan(flat), len(flat)
            weight = rng.multinomial(n, np.full(n, 1 / n), size=DRAWS)
            drawn += sign * (weight @ np.where(there, flat, 0.0)) / (weight @ there)
            several &= there.sum(0) > 1
    low, high = np.full(mean.size, np.nan), np.full(mean.size, np.nan)
    if several.any():
        low[several], high[several] = np.nanquantile(drawn[:, several], [0.025, 0.975], axis=0)
    return mean, low.reshape(mean.shape), high.reshape(mean.shape)


def _check(results: Sequence[Result], paired: bool) -> None:
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
    counts = [r.n for r in results]
    if paired and len(set(counts)) > 1:
        raise UsageError(
            f"paired, but the results have {' and '.join(map(str, counts))} examples",
            "Measure the same prompts, or use paired=False.",
        )


def _labels(results: Sequence[Result], labels: Sequence[str] | None) -> list[str]:
    if labels is not None and len(set(labels)) != len(results):
        raise UsageError(
            f"{len(set(labels))} different labels for {len(results)} results", "Give one each."
        )
    names: list[str] = []
    for name in labels or [r.model or "model" for r in results]:
        names.append(name if name not in names else f"{name} ({len(names) + 1})")
    return names
