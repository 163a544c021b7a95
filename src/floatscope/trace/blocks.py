"""Rearrange steps as blocks: the block that a step decided, and the step within that block."""

import numpy as np
import xarray as xr

from ..errors import TraceError


def by_block(data: xr.Dataset, array: xr.DataArray) -> xr.DataArray:
    """Replace the dimension `step` by `block` and `block_step`; NaN where a block took fewer steps."""
    if "step" not in array.dims:
        raise TraceError("this array has no steps to put into blocks", "Give one with a `step`.")
    edges, steps = data["block"].values, array["step"].values
    begins = np.append(True, (edges[1:] != edges[:-1]).any(1))[: len(edges)]
    number = np.cumsum(begins) - 1  # of each step's block
    within = np.arange(len(edges)) - np.flatnonzero(begins)[number]
    places = {"block": ("step", number[steps]), "block_step": ("step", within[steps])}
    names = [str(name) for name, c in array.coords.items() if "step" in c.dims]
    bare = array.drop_vars(names).astype(np.result_type(array.dtype, np.float32))
    every = bare.assign_coords(places).set_index(step=list(places)).unstack("step")
    every = every.reindex(block_step=np.arange(within[steps].max(initial=-1) + 1))
    first, stop = edges[np.searchsorted(number, every["block"].values)].T
    every = every.assign_coords(first=("block", first), stop=("block", stop))
    return every.transpose("block", "block_step", ...)
