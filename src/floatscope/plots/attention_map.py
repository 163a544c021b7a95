"""Reduce the attention in a trace to a two-dimensional array.

The functions select steps, layers, heads and regions, and average over the dimensions that are not shown.
Nothing is drawn here. The share of a region is the sum over its positions; all other dimensions are averaged.
The lift is the share divided by the share that uniform attention would give to the same positions; the
division comes before averaging.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict, Unpack

import numpy as np
import xarray as xr

from ..errors import UsageError
from ..trace import Trace

AXES = ("step", "layer", "head", "position", "region")
DIMENSIONS: tuple[Literal["step", "layer", "head"], ...] = ("step", "layer", "head")
Choice = int | Sequence[int] | None
GOLD = "gold"  # whichever region a prompt calls gold


class Selection(TypedDict, total=False):
    """The part of a trace that a map shows: regions, and labels by dimension (None: all labels)."""

    step: Choice
    layer: Choice
    head: Choice
    region: str | Sequence[str] | None


def attention_map(
    trace: Trace, rows: str, columns: str, *, lift: bool = False, **selection: Unpack[Selection]
) -> xr.DataArray:
    """Return the share of attention received, or its lift over uniform attention, as (rows, columns).

    A position that does not exist yet (in a causal model) is NaN.
    """
    by_head = selection.get("head") is not None or "head" in (rows, columns)
    data, null = trace.data, trace.null  # (step[, layer], key)
    share = trace.mass if by_head else trace.mean_mass  # (step, layer[, head], key)
    for name in (rows, columns):
        if name not in AXES:
            raise UsageError(f"no axis {name!r} in a trace", f"Choose two of {', '.join(AXES)}.")
    shown = {rows, columns}
    if len(shown) < 2 or shown == {"position", "region"}:
        raise UsageError(
            f"{rows} × {columns} is no map",
            f"Choose two of {', '.join(AXES)}, one of them a place.",
        )
    for dim in DIMENSIONS:
        labels = _labels(data, dim, selection.get(dim))
        share = share.sel({dim: labels}) if dim in share.dims else share
        null = null.sel({dim: labels}) if dim in null.dims else null
    names = regions_of(data, selection.get("region"))
    inside = np.isin(data["region"].values.astype(str), names)
    share, null = share.isel(key=inside), null.isel(key=inside)
    if "region" in shown:
        share, null = (_by_region(array, names) for array in (share, null))
    elif "position" not in shown:
        if inside.all():
            raise UsageError(
                f"{rows} × {columns} over all positions is 1 everywhere",
                f"Say which region: region={GOLD!r}, or one of {', '.join(names)}.",
            )
        share, null = (array.sum("key", min_count=1) for array in (share, null))
    values = share / null if lift else share
    values = values.rename(key="position") if "key" in values.dims else values
    averaged = [dim for dim in values.dims if dim not in shown]
    return (
        values.mean(averaged, skipna=True)
        .transpose(rows, columns)
        .rename("lift" if lift else "mass")
    )


def regions_of(data: xr.Dataset, region: str | Sequence[str] | None) -> list[str]:
    """Return the selected regions in the order of the text; "gold" selects the gold passage."""
    names = list(dict.fromkeys(map(str, data["region"].values)))
    if region is None:
        return names
    requested = [region] if isinstance(region, str) else list(region)
    gold = str(data.attrs["gold"])
    selected = [gold if name == GOLD and gold and GOLD not in names else name for name in requested]
    for name in selected:
        if name not in names:
            raise UsageError(f"no region {name!r} in this trace", f"It has: {', '.join(names)}.")
    return [name for name in names if name in selected]


def _labels(data: xr.Dataset, dim: str, choice: Choice) -> list[int]:
    recorded = [int(x) for x in data[dim].values]
    if choice is None:
        return recorded
    several = choice if isinstance(choice, Iterable) else [choice]
    labels = [int(x) for x in several]
    missing = [x for x in labels if x not in recorded]
    if missing or not labels:
        problem = f"no {dim} {missing[0]}" if missing else f"no {dim} chosen"
        raise UsageError(f"{problem} in this trace", f"It has: {recorded}.")
    return labels


def _by_region(array: xr.DataArray, names: list[str]) -> xr.DataArray:
    region = array["region"].values.astype(str)
    parts = [array.isel(key=region == name).sum("key", min_count=1) for name in names]
    return xr.concat(parts, dim=xr.Variable("region", names))
