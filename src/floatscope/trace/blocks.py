"""Steps as blocks: which block a step decided, and which step of that block it was."""

import numpy as np
import xarray as xr
from jaxtyping import Int

from ..errors import TraceError


def numbered(edges: Int[np.ndarray, "t 2"]) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " t"]]:
    """The number of each step's block, and of the step in it."""
    if not len(edges):
        return np.zeros(0, int), np.zeros(0, int)
    fresh = np.append(True, (edges[1:] != edges[:-1]).any(1))
    block = np.cumsum(fresh) - 1
    began = np.flatnonzero(fresh)
    return block, np.arange(len(edges)) - began[block]


def by_block(data: xr.Dataset, array: xr.DataArray) -> xr.DataArray:
    """An array over steps as one over blocks and their steps; NaN where a block took fewer."""
    if "step" not in array.dims:
        raise TraceError("this array has no steps to put into blocks", "Give one with a `step`.")
    edges = data["block"].values
    block, within = numbered(edges)
    steps = array["step"].values
    block, within = block[steps], within[steps]
    names = [str(name) for name, c in array.coords.items() if "step" in c.dims and name != "step"]
    kept = np.unique(block)
    shape = (len(kept), within.max(initial=-1) + 1)
    bare = array.drop_vars(names).transpose("step", ...)
    values = np.full((*shape, *bare.shape[1:]), np.nan, np.result_type(bare.dtype, np.float32))
    values[np.searchsorted(kept, block), within] = bare.values
    begun = np.searchsorted(numbered(edges)[0], kept)
    coords = {str(k): c for k, c in bare.coords.items() if "step" not in c.dims}
    own = {
        "block": kept,
        "block_step": np.arange(shape[1]),
        "first": ("block", edges[begun, 0]),
        "stop": ("block", edges[begun, 1]),
    }
    dims = ("block", "block_step", *map(str, bare.dims[1:]))
    return xr.DataArray(values, dims=dims, coords=coords | own, name=array.name)
