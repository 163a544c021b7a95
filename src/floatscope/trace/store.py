"""Labelled arrays on disk: a zarr 3 store that is whole or absent, and says so when it is damaged.

Zarr reads a missing chunk as zeros without a word; a list of every file's size and checksum in the
root's attributes, written last, makes that an error. No pickle is written or read.
"""

import json
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.dtypes import StringDType

from ..errors import TraceError

_ROOT = "zarr.json"  # zarr 3's own name for a group's metadata
_SCHEMA, _FILES = "floatscope_schema", "floatscope_files"
_CHUNK_BYTES = 8 << 20


def save(data: xr.Dataset, path: Path, schema: int, *, overwrite: bool = False) -> Path:
    """Write to a neighbour, then rename: a reader never meets half a store."""
    require_free(path, overwrite)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = {
            name: array.astype(StringDType())  # fixed-width text has no zarr 3 specification
            for name, array in data.variables.items()
            if array.dtype.kind == "U"
        }
        plain = data.assign_coords(text)
        plain.to_zarr(partial, zarr_format=3, consolidated=False, encoding=_encoding(data))
        _seal(partial, schema)
        _put_in_place(partial, path)
    except OSError as error:
        raise TraceError(
            f"{path} could not be written: {error.strerror or error}",
            f"It needs about {data.nbytes / 1e6:.0f} MB before compression; nothing was left behind.",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def require_free(path: Path, overwrite: bool) -> None:
    """Nothing is there, or a trace that may be replaced: nothing else is ever overwritten."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise TraceError(f"{path} exists", "Choose another path, or pass overwrite=True.")
    if path.is_symlink() or not is_trace(path):
        what = "a link" if path.is_symlink() else "a directory" if path.is_dir() else "a file"
        raise TraceError(
            f"{path} is {what}, and not a trace that Floatscope wrote: it is not overwritten",
            "Choose another path, or remove it yourself.",
        )


def is_trace(path: Path) -> bool:
    """Whether a directory carries our mark."""
    try:
        attributes = json.loads((path / _ROOT).read_text(encoding="utf-8"))["attributes"]
        return _SCHEMA in attributes
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _seal(store: Path, schema: int) -> None:
    """Put the schema and every file's size and checksum into the root's attributes."""
    root = store / _ROOT
    metadata = json.loads(root.read_text(encoding="utf-8"))
    metadata["attributes"][_SCHEMA] = schema
    metadata["attributes"][_FILES] = {
        str(file.relative_to(store)): [file.stat().st_size, zlib.crc32(file.read_bytes())]
        for file in sorted(store.rglob("*"))
        if file.is_file() and file != root
    }
    root.write_text(json.dumps(metadata), encoding="utf-8")


def _put_in_place(partial: Path, path: Path) -> None:
    if not path.exists():
        partial.rename(path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(old)
    try:
        partial.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old) if old.is_dir() else old.unlink()


def _encoding(data: xr.Dataset) -> dict[str, dict[str, tuple[int, ...]]]:
    """Chunks along the first dimension (steps, mostly), so that a viewer reads a step at a time."""
    encoding = {}
    for name, array in data.data_vars.items():
        if array.size:
            first = (
                max(1, _CHUNK_BYTES * array.shape[0] // max(array.nbytes, 1)) if array.ndim else 0
            )
            chunks = (min(first, array.shape[0]), *array.shape[1:]) if array.ndim else ()
            encoding[str(name)] = {"chunks": chunks}
    return encoding


def load(
    path: Path, schema: int, required: Sequence[str] = (), *, lazy: bool = False
) -> xr.Dataset:
    """Open a store after checking that it is ours, of this schema, and complete."""
    if not path.exists():
        raise TraceError(f"no trace at {path}", "Check the path.")
    try:
        attributes = json.loads((path / _ROOT).read_text(encoding="utf-8"))["attributes"]
        written = attributes[_SCHEMA]
        files = {name: (int(size), int(crc)) for name, (size, crc) in attributes[_FILES].items()}
        missing = sorted(set(required) - attributes.keys())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(
            f"{path} is not a Floatscope trace, or was cut short: {_ROOT} does not say what it holds",
            "Give a directory written by Trace.save; if it was, save it again.",
        ) from error
    if written != schema:
        raise TraceError(
            f"{path} has trace schema {written}; this version of Floatscope reads schema {schema}",
            "Read it with the version that wrote it, or trace again.",
        )
    if missing:
        raise _damaged(path, f"{_ROOT} does not say its {missing[0]}")
    for name, (size, checksum) in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            raise _damaged(path, f"{name} is missing or cut short")
        if not lazy and zlib.crc32(file.read_bytes()) != checksum:
            raise _damaged(path, f"{name} has changed since it was written")
    try:
        data = xr.open_zarr(path, zarr_format=3, consolidated=False, chunks=None)
    except Exception as error:  # zarr's own for damaged metadata are of many kinds
        raise _damaged(path, f"its arrays cannot be opened ({type(error).__name__})") from error
    del data.attrs[_SCHEMA], data.attrs[_FILES]
    # Text comes back as zarr's string type; plain numpy text compares and slices everywhere.
    text = {
        name: (array.dims, np.array(array.values.tolist(), dtype=np.str_).reshape(array.shape))
        for name, array in data.variables.items()
        if array.dtype.kind in "OT"
    }
    data = data.assign_coords(text)
    return data if lazy else data.load()


def _damaged(path: Path, what: str) -> TraceError:
    return TraceError(f"{path} is damaged: {what}", "Copy it again, or trace again.")
