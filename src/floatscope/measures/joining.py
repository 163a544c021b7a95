"""Examples side by side: what a measure found in each, as one dataset with a dimension `example`.

xarray's concat does the same for any datasets, and takes longer to align them than a measure to find them.
Examples of one measure mostly have the same variables on the same coordinates, and are then only stacked.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr


def side_by_side(examples: Sequence[xr.Dataset]) -> xr.Dataset:
    """All examples along a new first dimension; NaN where one lacks what another has.

    Coordinates and attributes are those of the first.
    """
    first = examples[0]
    if "example" in first.sizes or not all(_alike(first, other) for other in examples[1:]):
        return xr.concat(
            list(examples), dim="example", join="outer", coords="minimal", compat="override"
        )
    stacked = {
        name: xr.Variable(
            ("example", *array.dims),
            np.stack([one.variables[name].values for one in examples]),
            array.attrs,
        )
        for name, array in first.data_vars.variables.items()
    }
    return xr.Dataset(stacked, first.coords, first.attrs)


def _alike(a: xr.Dataset, b: xr.Dataset) -> bool:
    """The same variables and coordinates, in form and index: stacking them is all there is to do."""
    if a.variables.keys() != b.variables.keys() or a.coords.keys() != b.coords.keys():
        return False
    for name, one in a.variables.items():
        other = b.variables[name]
        if one.dims != other.dims or one.shape != other.shape or one.dtype != other.dtype:
            return False
    indexes, others = a.xindexes, b.xindexes
    return indexes.keys() == others.keys() and all(
        type(index) is type(others[name]) and index.equals(others[name])
        for name, index in indexes.items()
    )
