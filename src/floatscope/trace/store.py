"""Labelled arrays on disk: a zarr 3 store that is whole or absent, and says so when it is damaged.

A list of every file's size and checksum stands in the root's attributes, written last, with a checksum
of the root itself. `checked` compares what is read with it. No pickle is written or read.
"""

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.dtypes import StringDType

from ..errors import TraceError
from ..untrusted import read_object
from .checked import CheckedStore, RegularStore, damaged
from .declared import ROOT
from .placing import beside, leftovers, place, sweep
from .tokens import shared

_SCHEMA, _FILES, _SEAL = "floatscope_schema", "floatscope_files", "floatscope_seal"
_CHUNK_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 1  # each is in memory three times while it is compressed


def save(data: xr.Dataset, path: Path, schema: int, *, overwrite: bool = False) -> Path:
    """Write to a neighbour, then rename: a reader never meets half a store."""
    require_free(path, overwrite)
    text = {
        name: array.astype(StringDType())  # fixed-width text has no zarr 3 specification
        for name, array in data.variables.items()
        if array.dtype.kind in "OU"
    }
    plain = data.assign_coords(text)
    try:
        with beside(path) as partial:
            with zarr.config.set({"async.concurrency": _CHUNKS_AT_ONCE}):
                plain.to_zarr(partial, zarr_format=3, consolidated=False, encoding=_encoding(data))
            seal(partial, schema)
            place(partial, path, lambda: require_free(path, overwrite))
        sweep(path)
    except OSError as error:
        raise TraceError(
            f"{path} could not be written: {error.strerror or error}",
            f"It needs about {data.nbytes / 1e6:.0f} MB before compression; nothing was left behind.",
        ) from error
    return path


def rehearse(path: Path) -> None:
    """Make and remove what `save` will write beside the path, before the work whose result it saves."""
    new = [folder for folder in path.parents if not folder.exists()]  # the innermost first
    try:
        with beside(path):
            pass
    except OSError as error:
        raise TraceError(
            f"{path} could not be written: {error.strerror or error}", "Choose another place."
        ) from error
    finally:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()


def require_free(path: Path, overwrite: bool) -> None:
    """Nothing is there, or a trace that may be replaced: nothing else is ever overwritten."""
    if os.path.lexists(path) and not overwrite:
        raise TraceError(f"{path} exists", "Choose another path, or pass overwrite=True.")
    for _ in range(3):  # another writer may be replacing it while we look
        if not os.path.lexists(path) or (is_trace(path) and not path.is_symlink()):
            return
    what = "a link" if path.is_symlink() else "a directory" if path.is_dir() else "a file"
    raise TraceError(
        f"{path} is {what}, and not a trace that Floatscope wrote: it is not overwritten",
        "Choose another path, or remove it yourself.",
    )


def is_trace(path: Path) -> bool:
    """Whether a directory carries our mark."""
    try:
        return _SCHEMA in read_object(path / ROOT)["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_sealed(attributes: Mapping[str, Any]) -> bool:
    """What was to be written is there."""
    return _SEAL in attributes


def write_root(store: Path, metadata: Mapping[str, Any]) -> None:
    """The root's metadata: whole, or as before."""
    new = store / f"{ROOT}.new"
    new.write_text(json.dumps(metadata), encoding="utf-8")
    os.replace(new, store / ROOT)


def seal(store: Path, schema: int, *, without: str = "") -> None:
    """Put the schema and every file's size and checksum into the root's attributes.

    `without`: a folder that is about to go.
    """
    root = store / ROOT
    metadata = json.loads(root.read_text(encoding="utf-8"))
    metadata["attributes"].pop("floatscope_unfinished", None)
    metadata["attributes"][_SCHEMA] = schema
    metadata["attributes"][_FILES] = {
        str(file.relative_to(store)): [file.stat().st_size, zlib.crc32(file.read_bytes())]
        for file in sorted(store.rglob("*"))
        if file.is_file() and file != root and file.relative_to(store).parts[0] != without
    }
    metadata["attributes"][_SEAL] = _checksum(metadata)
    write_root(store, metadata)


def _checksum(metadata: dict[str, Any]) -> int:
    """Of all that the root says, but for the checksum itself."""
    attributes = {k: v for k, v in metadata["attributes"].items() if k != _SEAL}
    return zlib.crc32(json.dumps({**metadata, "attributes": attributes}, sort_keys=True).encode())


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
    path: Path,
    schemas: Sequence[int],
    required: Mapping[str, type] | None = None,
    *,
    lazy: bool = False,
) -> xr.Dataset:
    """Open a store after checking that it is ours, of one of these schemas, and complete.

    `required` are attributes and their types. Arrays are checked when they are read: now, or where
    `lazy`, when they are needed.
    """
    if not path.exists():
        raise _missing(path)
    try:
        metadata = read_object(path / ROOT)
        attributes = metadata["attributes"]
        written = attributes[_SCHEMA]
        files = {name: (int(size), int(crc)) for name, (size, crc) in attributes[_FILES].items()}
        seal = attributes.get(_SEAL)  # stores of before it have none
        whole = seal is None or seal == _checksum(metadata)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise TraceError(
            f"{path} is not a Floatscope trace, or was cut short: {ROOT} does not say what it holds",
            "Give a directory written by Trace.save; if it was, save it again.",
        ) from error
    if written not in schemas:
        known = " or ".join(map(str, schemas))
        raise TraceError(
            f"{path} has trace schema {written}; this version of Floatscope reads schema {known}",
            "Read it with the version that wrote it, or trace again.",
        )
    for name, kind in (required or {}).items():
        if not isinstance(attributes.get(name), kind):
            raise damaged(path, f"{ROOT} does not say its {name}")
    if not whole:
        raise damaged(path, f"{ROOT} has changed since it was written")
    for name, (size, _) in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            raise damaged(path, f"{name} is missing or cut short")
    arrays = [parts[0] for name in files if (parts := name.split("/"))[1:] == [ROOT]]
    source = CheckedStore(path, files)
    try:
        source.require_held(arrays, [size for size, _ in files.values()])
        return _read(source, lazy)
    except TraceError:
        raise
    except Exception as error:  # zarr's own for damaged metadata are of many kinds
        raise damaged(path, f"its arrays cannot be opened ({type(error).__name__})") from error


@contextmanager
def unzipped(path: Path) -> Iterator[Path]:
    """Extract a zip file that holds one saved trace, as the live page saves it, into a temporary folder.

    Archives of other origin may be hostile: compressed members, and members that claim more bytes than the
    file has, are refused before anything is written.
    """
    remedy = "Give the zip file that the live page saves, or a directory written by Trace.save."
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            size = sum(member.file_size for member in members)
            folders = {Path(member.filename).parts[0] for member in members if member.filename}
            if not stored or size > path.stat().st_size or len(folders) != 1:
                raise TraceError(f"{path} does not hold exactly one saved trace", remedy)
            with tempfile.TemporaryDirectory(prefix="floatscope-") as folder:
                archive.extractall(folder)
                (store,) = Path(folder).iterdir()
                yield store
    except (OSError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path} cannot be unpacked: {error}", remedy) from error


def opened(store: RegularStore, without: Sequence[str] = ()) -> xr.Dataset:
    """The arrays, on disk until they are asked for."""
    data: xr.Dataset = xr.open_zarr(
        store, zarr_format=3, consolidated=False, chunks=None, drop_variables=list(without)
    )
    return data


def _read(store: CheckedStore, lazy: bool) -> xr.Dataset:
    data = opened(store)
    for name in (_SCHEMA, _FILES, _SEAL):
        data.attrs.pop(name, None)
    # Text comes back as zarr's string type; plain numpy text compares and slices everywhere.
    text = {
        name: _text(array) for name, array in data.variables.items() if array.dtype.kind in "OT"
    }
    data = data.assign_coords(text)
    return data if lazy else data.load()


def _text(array: xr.Variable) -> xr.Variable:
    texts = array.values.ravel().tolist()
    if array.ndim > 1:
        return shared(texts, array.dims, array.shape)
    return xr.Variable(array.dims, np.array(texts, dtype=np.str_).reshape(array.shape))


def _missing(path: Path) -> TraceError:
    old = [one for one in leftovers(path) if is_trace(one)] if path.parent.is_dir() else []
    if old:
        return TraceError(
            f"no trace at {path}; a save of it was ended before it was done, and left {old[-1].name}",
            "Rename that to have it back, or save again.",
        )
    return TraceError(f"no trace at {path}", "Check the path.")
