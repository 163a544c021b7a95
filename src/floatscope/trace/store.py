"""Store labelled arrays in a zarr 3 store that is complete or absent, and detect damage.

The attributes of the root list the size and checksum of every file. These attributes are written last, with a
checksum of the root itself. When the store is read, the module `checked` verifies the files. No pickle is
written or read.
"""

import json
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.dtypes import StringDType

from ..atomic import folder_beside, leftovers, placed, unwritable
from ..errors import TraceError, foreign
from ..untrusted import read_object
from .checked import COPY_AGAIN, ROOT, CheckedStore, damaged

_SCHEMA, _FILES, _SEAL = "floatscope_schema", "floatscope_files", "floatscope_seal"
PROGRESS = "floatscope_unfinished"  # attribute of a store that is not sealed yet
_CHUNK_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 1  # each needs three times its memory during compression


def save(data: xr.Dataset, path: Path, schema: int, *, overwrite: bool = False) -> Path:
    """Write a dataset to a temporary directory and rename it, so that no reader sees an incomplete store."""
    require_free(path, overwrite)
    size = f"It needs about {data.nbytes / 1e6:.0f} MB before compression"
    place = placed(path, lambda: require_free(path, overwrite))
    with writing(path, f"{size}; nothing was left behind."), place as partial:
        with zarr.config.set({"async.concurrency": _CHUNKS_AT_ONCE}):
            write_zarr(data, partial, encoding=_encoding(data))
        seal(partial, schema)
    return path


@contextmanager
def writing(path: Path, remedy: str) -> Iterator[None]:
    """Return a context that turns file system errors into a TraceError about writing the store."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, remedy, TraceError) from error


def write_zarr(data: xr.Dataset, path: Path, **options: Any) -> None:
    """Write a dataset as zarr 3; text becomes variable-width, since zarr 3 specifies no fixed-width text."""
    texts = {name: array for name, array in data.variables.items() if array.dtype.kind in "OU"}
    text = {name: array.astype(StringDType()) for name, array in texts.items()}
    data.assign_coords(text).to_zarr(path, zarr_format=3, consolidated=False, **options)


def rehearse(path: Path) -> None:
    """Check that `save` can write to the path, before a long computation."""
    new = [folder for folder in path.parents if not folder.exists()]  # innermost first
    try:
        with writing(path, "Choose another path."), folder_beside(path):
            pass
    finally:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()


def require_free(path: Path, overwrite: bool) -> None:
    """Raise TraceError if the path exists, unless it is a trace that may be overwritten."""
    if os.path.lexists(path) and not overwrite:
        raise TraceError(f"{path} exists", "Choose another path, or pass overwrite=True.")
    for _ in range(3):  # another writer may be replacing it at the same time
        if not os.path.lexists(path) or (is_trace(path) and not path.is_symlink()):
            return
    kind = "a link" if path.is_symlink() else "a directory" if path.is_dir() else "a file"
    problem = f"{path} is {kind}, not a trace written by Floatscope: it is not overwritten"
    raise TraceError(problem, "Choose another path, or remove it yourself.")


def is_trace(path: Path) -> bool:
    """Return whether a directory is marked as a saved trace."""
    return _SCHEMA in _attributes(path)


def progress(path: Path) -> dict[str, Any] | None:
    """Return the progress attributes of an unfinished store; None for finished stores and other paths."""
    attributes = _attributes(path)
    value = None if _SEAL in attributes else attributes.get(PROGRESS)
    return value if isinstance(value, dict) else None


def _attributes(path: Path) -> dict[str, Any]:
    """Return the attributes of a store's root; empty if unreadable (`load` reports the error)."""
    try:
        attributes = read_object(path / ROOT)["attributes"]
    except (OSError, ValueError, KeyError):
        return {}
    return attributes if isinstance(attributes, dict) else {}


def write_root(store: Path, metadata: Mapping[str, Any]) -> None:
    """Replace the root's metadata atomically."""
    new = store / f"{ROOT}.new"
    new.write_text(json.dumps(metadata), encoding="utf-8")
    os.replace(new, store / ROOT)


def seal(store: Path, schema: int, *, without: str = "") -> None:
    """Write the schema and every file's size and checksum into the root's attributes.

    `without` is a folder that is left out because it is about to be removed.
    """
    root = store / ROOT
    metadata = json.loads(root.read_text(encoding="utf-8"))
    metadata["attributes"].pop(PROGRESS, None)
    metadata["attributes"][_SCHEMA] = schema
    metadata["attributes"][_FILES] = {
        file.relative_to(store).as_posix(): [file.stat().st_size, zlib.crc32(file.read_bytes())]
        for file in sorted(store.rglob("*"))
        if file.is_file() and file != root and file.relative_to(store).parts[0] != without
    }
    metadata["attributes"][_SEAL] = _checksum(metadata)
    write_root(store, metadata)


def _checksum(metadata: dict[str, Any]) -> int:
    """Compute the checksum of the root's metadata, without the checksum itself."""
    attributes = {k: v for k, v in metadata["attributes"].items() if k != _SEAL}
    return zlib.crc32(json.dumps({**metadata, "attributes": attributes}, sort_keys=True).encode())


def _encoding(data: xr.Dataset) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the chunk sizes of each array: whole steps (the first dimension), about 8 MiB per chunk."""
    encoding = {}
    for name, array in data.data_vars.items():
        if array.size and array.ndim:
            first = max(1, _CHUNK_BYTES * array.shape[0] // array.nbytes)
            encoding[str(name)] = {"chunks": (min(first, array.shape[0]), *array.shape[1:])}
    return encoding


def load(path: Path, schema: int, required: Mapping[str, type], *, lazy: bool) -> xr.Dataset:
    """Open a store after checking that it is a complete trace of this schema.

    `required` maps required attributes to their types. An array is checked when it is read. Arrays are read
    at once, or, with `lazy`, when they are used.
    """
    if not path.exists():
        raise _missing(path)
    try:
        metadata = read_object(path / ROOT)
        attributes = metadata["attributes"]
        written = attributes[_SCHEMA]
        files = {name: (int(size), int(crc)) for name, (size, crc) in attributes[_FILES].items()}
        intact = attributes.get(_SEAL) == _checksum(metadata)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        problem = f"{path} is not a Floatscope trace, or was cut short: {ROOT} does not describe its content"
        remedy = "Give a directory written by Trace.save, or save the trace again."
        raise TraceError(problem, remedy) from error
    if written != schema:
        problem = (
            f"{path} has trace schema {written}; this version of Floatscope reads schema {schema}"
        )
        raise TraceError(problem, "Read it with the version that wrote it, or trace again.")
    for name, kind in required.items():
        if not isinstance(attributes.get(name), kind):
            raise damaged(path, f"{ROOT} has no {name}")
    if not intact:
        raise damaged(path, f"{ROOT} has changed since it was written")
    for name, (size, _) in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            raise damaged(path, f"{name} is missing or cut short")
    arrays = [parts[0] for name in files if (parts := name.split("/"))[1:] == [ROOT]]
    source = CheckedStore(path, files)
    with foreign(TraceError, f"{path} is damaged: its arrays cannot be opened", COPY_AGAIN):
        source.require_held(arrays, [size for size, _ in files.values()])
        data = _read(source)
        return data if lazy else data.load()


@contextmanager
def unzipped(path: Path) -> Iterator[Path]:
    """Extract a zip file with one trace, as saved by the live page, and yield its temporary folder.

    An error is raised before anything is extracted if a member is compressed or claims more bytes than the
    file has.
    """
    remedy = "Give the zip file that the live page saves, or a directory written by Trace.save."
    with tempfile.TemporaryDirectory(prefix="floatscope-") as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
                size = sum(member.file_size for member in members)
                folders = {Path(member.filename).parts[:1] for member in members}
                if not stored or size > path.stat().st_size or len(folders) != 1:
                    raise TraceError(f"{path} does not contain exactly one saved trace", remedy)
                archive.extractall(folder)
            (store,) = Path(folder).iterdir()
        except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
            raise TraceError(f"{path} cannot be unpacked: {error}", remedy) from error
        yield store


def _read(store: CheckedStore) -> xr.Dataset:
    """Open the dataset of a store, with zarr's string type converted to numpy's."""
    data: xr.Dataset = xr.open_zarr(store, zarr_format=3, consolidated=False, chunks=None)
    for name in (_SCHEMA, _FILES, _SEAL):
        data.attrs.pop(name, None)
    texts = {name: array for name, array in data.variables.items() if array.dtype.kind in "OT"}
    return data.assign_coords({name: _text(array) for name, array in texts.items()})


def _text(array: xr.Variable) -> xr.Variable:
    texts = array.values.ravel().tolist()
    if array.ndim > 1:
        return text_variable(texts, array.dims, array.shape)
    return xr.Variable(array.dims, np.array(texts, dtype=np.str_).reshape(array.shape))


def text_variable(texts: Iterable[str], dims: Any, shape: tuple[int, ...]) -> xr.Variable:
    """Create a variable of texts in which equal texts share one object, because tokens repeat over steps."""
    array = np.fromiter(map(sys.intern, texts), dtype=object).reshape(shape)
    # Without `fastpath` xarray tests whether the objects are dates, and copies each of them.
    return xr.Variable(dims, array, fastpath=True)


def _missing(path: Path) -> TraceError:
    old = list(filter(is_trace, leftovers(path))) if path.parent.is_dir() else []
    if old:
        problem = f"no trace at {path}; an interrupted save left"
        return TraceError(
            f"{problem} {old[-1].name}",
            "Rename that directory to restore the trace, or save again.",
        )
    return TraceError(f"no trace at {path}", "Check the path.")
