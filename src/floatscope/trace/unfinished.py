"""A trace that is written while it is recorded: a zarr 3 store that says how far it is, and opens.

Each statistic is an array with room for every step; a step is a chunk of it, written once. The root's
attributes are replaced when a step is there whole, so that whoever ends the writer leaves the steps before.
`finish` adds what is known at the end only (tokens, text) and seals the store as `store.save` does; until it
is sealed, it opens as unfinished.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.dtypes import StringDType

from ..errors import TraceError
from ..untrusted import read_object
from . import store
from .checked import RegularStore, damaged
from .declared import ROOT
from .tokens import shared

PROGRESS = "floatscope_unfinished"  # an attribute of the root
CANVAS = "canvas_at_step"  # the input of each step, until the trace has its own
_KEYS = ("key", "query")  # dimensions that may be shorter in the end


class Unfinished:
    """The store of one prompt, as it is written."""

    def __init__(self, path: Path, room: int, about: Mapping[str, Any]) -> None:
        """`about`: attributes and coordinates that are known before the first step."""
        store.require_free(path, False)
        self.path, self.room, self.written = path, room, 0
        self._about = dict(about)
        self._arrays: dict[str, zarr.Array[Any]] = {}
        try:
            path.mkdir(parents=True)
            self._say()
            self._group = zarr.open_group(str(path), mode="r+", zarr_format=3)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, step: int, arrays: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> None:
        """The next kept step, whole; dimensions come with each array."""
        try:
            for name, (dims, values) in arrays.items():
                if name not in self._arrays:
                    self._arrays[name] = self._group.create_array(
                        name,
                        shape=(self.room, *values.shape),
                        chunks=(1, *values.shape),
                        dtype=values.dtype,
                        compressors=None,  # numbers like these shrink little, and slowly
                        fill_value=np.nan if values.dtype.kind == "f" else -1,
                        dimension_names=("step", *dims),
                    )
                self._arrays[name][self.written] = values
            self.written += 1
            self._about["steps"] = [*self._about.get("steps", []), step]
            self._say()
        except OSError as error:
            raise self._failed(error) from error

    def finish(self, data: xr.Dataset, schema: int) -> Path:
        """With all that is not there yet; its sizes say which part of the room was needed."""
        text = {
            name: array.astype(StringDType())
            for name, array in data.variables.items()
            if array.dtype.kind in "OU"
        }
        plain = data.assign_coords(text).assign_attrs({PROGRESS: self._progress()})  # until sealed
        try:
            plain.to_zarr(self.path, mode="a", zarr_format=3, consolidated=False)
            for array in self._arrays.values():
                sizes = zip(_dims(array), array.shape, strict=True)
                array.resize(tuple(data.sizes.get(dim, n) for dim, n in sizes))
            store.seal(self.path, schema, without=CANVAS)
            shutil.rmtree(self.path / CANVAS, ignore_errors=True)  # a sealed store does not know it
        except OSError as error:
            raise self._failed(error) from error
        return self.path

    def _say(self) -> None:
        """How far it is: whole or as before."""
        attributes = {PROGRESS: self._progress()}
        root = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
        store.write_root(self.path, root)

    def _progress(self) -> dict[str, Any]:
        return {**self._about, "room": self.room, "arrays": sorted(self._arrays)}

    def _failed(self, error: OSError) -> TraceError:
        return TraceError(
            f"{self.path} could not be written: {error.strerror or error}",
            f"{self.written} steps are there, and Trace.load opens them.",
        )


def _dims(array: "zarr.Array[Any]") -> tuple[str, ...]:
    names = getattr(array.metadata, "dimension_names", None) or ()
    return tuple(map(str, names))


def progress(path: Path) -> dict[str, Any] | None:
    """What an unfinished store says of itself; None where there is none."""
    try:
        attributes = read_object(path / ROOT)["attributes"]
        found = None if store.is_sealed(attributes) else attributes[PROGRESS]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # whatever it is, `store.load` says so
    return found if isinstance(found, dict) else None


def load(path: Path, about: Mapping[str, Any], *, lazy: bool = False) -> xr.Dataset:
    """The steps that are there. Of tokens their ids are known; what came of the last step is not."""
    try:
        return _steps_of(path, about, lazy)
    except TraceError:
        raise
    except Exception as error:  # whatever a field of another type leads to
        raise damaged(path, "what it says of its steps does not fit them") from error


def _variables(path: Path, about: Mapping[str, Any], lazy: bool) -> dict[str, xr.Variable]:
    """The arrays, as far as steps are there; some may have been cut to their final size already."""
    n = len(about["steps"])
    files = [os.lstat(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names]
    source = RegularStore(path)
    source.require_held(about["arrays"], [file.st_size for file in files], steps=n)
    arrays = {
        name: zarr.open_array(source, path=name, mode="r", zarr_format=3)
        for name in about["arrays"]
    }
    sizes = {name: dict(zip(_dims(one), one.shape, strict=True)) for name, one in arrays.items()}
    cut = {
        dim: min(some.get(dim, len(about["region"])) for some in sizes.values()) for dim in _KEYS
    }
    variables = {}
    alike = all(some.get(dim, n) == n for some in sizes.values() for dim, n in cut.items())
    if lazy and alike and len({some["step"] for some in sizes.values()}) == 1:
        others = {one.parent.name for one in path.glob(f"*/{ROOT}")} - {*arrays}
        opened = store.opened(source, sorted(others))
        variables = {name: opened[name].variable.isel(step=slice(n)) for name in arrays}
    for name in arrays.keys() - variables.keys():
        dims = _dims(arrays[name])
        part = (slice(n), *(slice(cut.get(dim)) for dim in dims[1:]))
        variables[name] = xr.Variable(dims, arrays[name][part])
    return variables


def _steps_of(path: Path, about: Mapping[str, Any], lazy: bool) -> xr.Dataset:
    steps = about["steps"]
    try:
        variables = _variables(path, about, lazy) if steps else {}
    except TraceError:
        raise
    except Exception as error:  # zarr's own for damaged metadata are of many kinds
        raise damaged(path, f"its steps cannot be opened ({type(error).__name__})") from error
    nothing = np.zeros((0, len(about["region"])), np.int64)
    canvas = variables.pop(CANVAS).values if steps else nothing
    ids = [f"<{i}>" if i >= 0 else "" for i in canvas.ravel().tolist()]
    last = canvas[-1].tolist() if steps else []
    mask, start = about["attributes"]["mask_id"], about["attributes"]["prompt_length"]
    masked = canvas == (-2 if mask < 0 else mask)
    masked[:, :start] = False
    coords: dict[str, Any] = {
        "step": steps,
        **{name: about[name] for name in ("layer", "head")},
        **{name: np.array(about[name], np.str_) for name in ("group", "source", "target")},
        "key": np.arange(canvas.shape[1]),
        "region": ("key", np.array(about["region"][: canvas.shape[1]], np.str_)),
        "final_token": (
            "key",
            np.array([f"<{i}>" for i in last] or [""] * canvas.shape[1], np.str_),
        ),
        "token": shared(ids, ("step", "key"), canvas.shape),
        "masked": (("step", "key"), masked),
    }
    if "entropy" in variables:
        coords["query"] = np.arange(canvas.shape[1])
    variables["canvas"] = xr.Variable(("state", "key"), canvas.astype(np.int32))
    variables["change"] = xr.Variable(("tick", "key"), np.zeros(canvas.shape, np.int8))
    used = {dim for one in variables.values() for dim in one.dims}
    for name in ("group", "source", "target"):
        if name not in used:
            coords.pop(name)
    data = xr.Dataset(variables, coords)
    data.attrs = {**about["attributes"], "unfinished": f"{len(steps)} of {about['room']} steps"}
    return data
