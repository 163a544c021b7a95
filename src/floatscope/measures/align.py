"""Arrays of different models on the same dimensions and coordinates, for compare(...), or examples.

Names are matched, layers by relative depth; nothing is made up for what has no counterpart.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from ..errors import UsageError
from .result import Result


def aligned(
    arrays: list[xr.DataArray], results: Sequence[Result], left: list[str], name: str
) -> list[xr.DataArray] | None:
    """The same dimensions and coordinates for all, example first; None where that cannot be."""
    if len({r.model for r in results}) > 1 and any("head" in a.dims for a in arrays):
        arrays = [a.mean("head") for a in arrays]
        left.append(f"{name}: heads (of different models; their mean is compared)")
    if any(set(a.dims) != set(arrays[0].dims) for a in arrays):
        left.append(f"{name}: different dimensions")
        return None
    for dim in [d for d in arrays[0].dims if d not in ("example", "layer")]:
        here = [list(a[dim].values) for a in arrays]
        shared = [x for x in here[0] if all(x in h for h in here)]
        gone = dict.fromkeys(str(x) for h in here for x in h if x not in shared)
        if gone:
            left.append(f"{name}: {dim} {', '.join(gone)}")
        if not shared:
            return None
        arrays = [a.sel({dim: shared}) for a in arrays]
    if "layer" in arrays[0].dims:
        arrays = _by_depth(arrays)
    order = ["example", *[d for d in arrays[0].dims if d != "example"]]
    return [a.transpose(*order) for a in arrays]


def _by_depth(arrays: list[xr.DataArray]) -> list[xr.DataArray]:
    counts = [a.sizes["layer"] for a in arrays]
    if min(counts) == 1 and max(counts) > 1:
        raise UsageError(
            f"layer counts {counts}: one layer has no relative depth", "Measure two layers or more."
        )
    deep = []
    for a in arrays:
        at = a["layer"].values.astype(float)
        deep.append(
            a.rename(layer="depth").assign_coords(depth=(at - at[0]) / max(at[-1] - at[0], 1))
        )
    grid = min(deep, key=lambda a: a.sizes["depth"])["depth"].values
    same = [a.sizes["depth"] == len(grid) and np.allclose(a["depth"], grid) for a in deep]
    return [
        a.assign_coords(depth=grid) if s else _interpolated(a, grid)
        for a, s in zip(deep, same, strict=True)
    ]


def _interpolated(a: xr.DataArray, grid: np.ndarray) -> xr.DataArray:
    """Linear in depth. NaN where a neighbour is NaN."""
    values = a.transpose("depth", ...)
    x = values["depth"].values
    right = np.clip(np.searchsorted(x, grid), 1, len(x) - 1)
    share = ((grid - x[right - 1]) / (x[right] - x[right - 1])).reshape(-1, *[1] * (a.ndim - 1))
    low, high = values.values[right - 1], values.values[right]
    mixed = np.where(share <= 0, low, np.where(share >= 1, high, (1 - share) * low + share * high))
    rest = {k: v for k, v in values.coords.items() if k in values.dims and k != "depth"}
    return xr.DataArray(mixed, {**rest, "depth": grid}, values.dims)


def by_example(a: xr.DataArray, b: xr.DataArray) -> tuple[np.ndarray, np.ndarray] | None:
    """Both on the examples they share, by the names in coordinate `example`, in a's order.

    An example that stands there several times is the mean of its values; None where none is shared.
    """
    names = [np.array(list(map(str, array["example"].values))) for array in (a, b)]
    shared = [name for name in dict.fromkeys(names[0]) if name in set(names[1])]
    if not shared:
        return None
    first, second = (
        np.stack([array.isel(example=here == name).mean("example").values for name in shared])
        for array, here in zip((a, b), names, strict=True)
    )
    return first, second
