"""Store a trace while it is recorded: a zarr 3 store that lists the written steps and can be opened.

Each statistic is an array with room for every step; each step is one chunk, which is written once. The
attributes of the root are replaced after every complete step. `finish` adds the tokens and texts that are
known at the end, and seals the store in the same way as `store.save`. Until `finish` is called, the store
opens as unfinished.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core.indexing import LazilyIndexedArray

from ..errors import TraceError, foreign
from . import store
from .checked import COPY_AGAIN, CheckedStore
from .store import PROGRESS, progress

__all__ = ["CANVAS", "PROGRESS", "Unfinished", "load", "progress"]

CANVAS = "canvas_at_step"  # input tokens of each step, until `finish` writes the canvas
_KEYS = ("key", "query")  # dimensions that `finish` may shorten


class Unfinished:
    """Store of one prompt's trace while it is recorded."""

    def __init__(self, path: Path, room: int, about: Mapping[str, Any]) -> None:
        """Create a store; `about` contains the attributes and coordinates known before the first step."""
        store.require_free(path, False)
        self.path, self.room, self.written = path, room, 0
        self._about = dict(about)
        self._arrays: dict[str, zarr.Array[Any]] = {}
        with self._writing():
            path.mkdir(parents=True)
            self._write_progress()
            self._group = zarr.open_group(str(path), mode="r+", zarr_format=3)

    def write(self, step: int, arrays: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> None:
        """Write all arrays of the next kept step; each array comes with the names of its dimensions."""
        with self._writing():
            for name, (dims, values) in arrays.items():
                if name not in self._arrays:
                    self._arrays[name] = self._group.create_array(
                        name,
                        shape=(self.room, *values.shape),
                        chunks=(1, *values.shape),
                        dtype=values.dtype,
                        compressors=None,  # compression is slow and saves little
                        fill_value=np.nan if values.dtype.kind == "f" else -1,
                        dimension_names=("step", *dims),
                    )
                self._arrays[name][self.written] = values
            self.written += 1
            self._about["steps"] = [*self._about.get("steps", []), step]
            self._write_progress()

    def finish(self, data: xr.Dataset, schema: int) -> Path:
        """Add the missing arrays and attributes, cut arrays to the sizes of `data`, and seal the store."""
        with self._writing():
            data = data.assign_attrs({PROGRESS: self._progress()})  # until it is sealed
            store.write_zarr(data, self.path, mode="a")
            for array in self._arrays.values():
                sizes = zip(_dims(array), array.shape, strict=True)
                array.resize(tuple(data.sizes.get(dim, n) for dim, n in sizes))
            store.seal(self.path, schema, without=CANVAS)
            shutil.rmtree(self.path / CANVAS, ignore_errors=True)  # not part of the sealed store
        return self.path

    def _write_progress(self) -> None:
        root = {"attributes": {PROGRESS: self._progress()}, "zarr_format": 3, "node_type": "group"}
        store.write_root(self.path, root)

    def _progress(self) -> dict[str, Any]:
        return {**self._about, "room": self.room, "arrays": sorted(self._arrays)}

    def _writing(self) -> AbstractContextManager[None]:
        return store.writing(
            self.path, f"Trace.load opens the {self.written} steps already written."
        )


def load(path: Path, about: Mapping[str, Any], *, lazy: bool = False) -> xr.Dataset:
    """Open the steps written so far, with token ids as text; what the last step revealed is unknown."""
    with foreign(TraceError, f"{path} is damaged: its steps cannot be opened", COPY_AGAIN):
        data = _steps(path, about)
        return data if lazy else data.load()


def _steps(path: Path, about: Mapping[str, Any]) -> xr.Dataset:
    steps, region = about["steps"], about["region"]
    variables = _variables(path, about) if steps else {}
    canvas = variables.pop(CANVAS).values if steps else np.zeros((0, len(region)), np.int64)
    ids = [f"<{i}>" if i >= 0 else "" for i in canvas.ravel().tolist()]
    last = [f"<{i}>" for i in canvas[-1].tolist()] if steps else [""] * len(region)
    facts = about["attributes"]
    masked = canvas == (-2 if facts["mask_id"] < 0 else facts["mask_id"])
    masked[:, : facts["prompt_length"]] = False
    size = canvas.shape[1]
    variables["canvas"] = xr.Variable(("state", "key"), canvas.astype(np.int32))
    variables["change"] = xr.Variable(("tick", "key"), np.zeros(canvas.shape, np.int8))
    used = {dim for variable in variables.values() for dim in variable.dims}
    coords: dict[str, Any] = {
        "step": steps,
        **{name: about[name] for name in ("layer", "head")},
        **{n: np.array(about[n], np.str_) for n in ("group", "source", "target") if n in used},
        "key": np.arange(size),
        "region": ("key", np.array(region[:size], np.str_)),
        "final_token": ("key", np.array(last, np.str_)),
        "token": store.text_variable(ids, ("step", "key"), canvas.shape),
        "masked": (("step", "key"), masked),
    }
    if "entropy" in variables:
        coords["query"] = np.arange(size)
    attributes = {**facts, "unfinished": f"{len(steps)} of {about['room']} steps"}
    return xr.Dataset(variables, coords, attributes)


def _variables(path: Path, about: Mapping[str, Any]) -> dict[str, xr.Variable]:
    """Return the arrays by name for the steps written so far; some may have been cut to their final size."""
    n = len(about["steps"])
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    source = CheckedStore(path)
    source.require_held(about["arrays"], [file.lstat().st_size for file in files], steps=n)
    variables = {}
    for name in about["arrays"]:
        array = zarr.open_array(source, path=name, mode="r", zarr_format=3)
        values = LazilyIndexedArray(ZarrArrayWrapper(array))  # type: ignore[no-untyped-call]
        variables[name] = xr.Variable(_dims(array), values)
    for dim in _KEYS:
        sizes = [variable.sizes.get(dim, len(about["region"])) for variable in variables.values()]
        part: Any = {dim: slice(min(sizes))}
        variables = {n: v.isel(part, missing_dims="ignore") for n, v in variables.items()}
    return {name: variable.isel(step=slice(n)) for name, variable in variables.items()}


def _dims(array: "zarr.Array[Any]") -> tuple[str, ...]:
    names = getattr(array.metadata, "dimension_names", None) or ()
    return tuple(map(str, names))
