"""Shards on disk: `<id>.npz`, arrays and a JSON header, and `<id>.json`, written after it.

A shard counts as done only if its sidecar is there, says what the file's header says, carries the
key of this plan, and the file has the checksum in it. The same output gives the same bytes: names
are sorted, times are fixed, arrays are C-ordered and little-endian, compression is always the same.
No pickle is written or read.
"""

import hashlib
import io
import json
import math
import os
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError, UsageError
from ..untrusted import (
    LIMIT,
    Unreadable,
    opened,
    parse_object,
    read_object,
    require_fields,
    require_ratio,
    texts,
)
from . import atomic
from .plan import SCHEMA, Output, as_json

_HEADER = "shard.json"
_COMPRESSION, _LEVEL = zipfile.ZIP_DEFLATED, 1  # measured floats hardly gain from a higher level
_LARGEST = 4 << 30  # bytes of a shard's file, which is made in memory
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip file can name
# What reading a zip file with JSON in it can raise; RuntimeError: one said to be encrypted.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, TypeError, AttributeError,
    RuntimeError,
)  # fmt: skip


class Damaged(Exception):
    """A shard that does not count, and why."""


def encode(shard: str, key: str, output: Output) -> bytes:
    """The bytes of a shard's file."""
    arrays = {name: _plain(shard, name, output.arrays[name]) for name in sorted(output.arrays)}
    meta = as_json(output.meta, f"the meta of shard {shard}")
    if not isinstance(meta.get("left_out", []), list):
        raise UsageError(f"meta['left_out'] of shard {shard} is not a list", "List what and why.")
    header = {
        "schema": SCHEMA,
        "shard": shard,
        "key": key,
        "compression": f"deflate {_LEVEL}",
        "arrays": {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()},
        "meta": meta,
    }
    if output.sources:
        header["sources"] = as_json(output.sources, f"the sources of shard {shard}")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = json.dumps(header, sort_keys=True, allow_nan=False)
        with archive.open(_entry(_HEADER), "w", force_zip64=True) as file:
            file.write(text.encode("ascii"))
        for name, array in arrays.items():
            with archive.open(_entry(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # whatever system writes it
    entry.compress_type = _COMPRESSION
    # zipfile takes an entry's level from this field; the public argument is for whole archives.
    setattr(
        entry, "compress_level" if hasattr(entry, "compress_level") else "_compresslevel", _LEVEL
    )
    return entry


def _plain(shard: str, name: str, value: np.ndarray) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind == "T":
        raise UsageError(
            f"array {name!r} of shard {shard} holds Python objects",
            "Give numbers, booleans or fixed-width text.",
        )
    if not name or "\0" in name:
        raise UsageError(f"shard {shard} has an array called {name!r}", "Give it a name.")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _archive(file: io.BufferedIOBase) -> zipfile.ZipFile:
    """Open a shard's file, unless it declares more than it can honestly hold."""
    size = file.seek(0, io.SEEK_END)
    archive = zipfile.ZipFile(file)
    require_ratio(sum(entry.file_size for entry in archive.infolist()), size)
    return archive


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    if archive.getinfo(_HEADER).file_size > LIMIT:
        raise Unreadable(f"holds a {_HEADER} of more than {LIMIT >> 20} MB")
    header = parse_object(archive.read(_HEADER))
    require_fields(header, {"schema": int, "shard": str, "key": str, "arrays": dict, "meta": dict})
    texts(header, "sources")
    return header


def sources_of(data: bytes) -> dict[str, str]:
    """Return what an encoded shard was computed from: name → checksum."""
    with _archive(io.BytesIO(data)) as archive:
        return dict(_header(archive).get("sources", {}))


def _digest(file: io.BufferedIOBase) -> str:
    """Hash a file from its beginning, unless it is larger than any shard."""
    if (size := file.seek(0, io.SEEK_END)) > _LARGEST:
        raise Damaged(f"its file has {size >> 20:,} MB, and a shard at most {_LARGEST >> 20:,}")
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _sidecar(header: dict[str, Any], digest: str, size: int) -> dict[str, Any]:
    """What can be known of a shard without opening it."""
    kept = {name: header[name] for name in ("schema", "shard", "key")}
    left_out = header["meta"].get("left_out", [])
    sources = {"sources": header["sources"]} if "sources" in header else {}
    return {**kept, **sources, "sha256": digest, "bytes": size, "left_out": left_out}


def _array(entry: bytes) -> np.ndarray:
    """An .npy file's array, as `encode` writes it. Thousands of a run have one of a few headers, and each
    is parsed once."""
    end = 10 + int.from_bytes(entry[8:10], "little")
    shape, fortran, dtype = _form(entry[:end])
    size = math.prod(shape) * dtype.itemsize
    if fortran or dtype.hasobject or size != len(entry) - end or not dtype.itemsize:
        raise Unreadable(f"holds an array of shape {shape} and {dtype} in {len(entry) - end} bytes")
    return np.ndarray(shape, dtype, entry, end).copy()


@lru_cache(maxsize=4096)
def _form(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and type."""
    file = io.BytesIO(header)
    try:
        np.lib.format.read_magic(file)
        return np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # numpy lets those of Python's parser through
        raise Unreadable("holds an array without a header") from error


class Shards:
    """The folder of a run's shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._verified: dict[str, tuple[str, tuple[int, ...]]] = {}  # digest and file state

    def path(self, shard: str) -> Path:
        return self.folder / f"{shard}.npz"

    def sidecar(self, shard: str) -> Path:
        return self.folder / f"{shard}.json"

    def ids(self) -> set[str]:
        """Of everything that lies there, whole or not, ours or not."""
        return {path.stem for path in self.folder.glob("*") if path.suffix in (".npz", ".json")}

    def write(self, shard: str, data: bytes) -> dict[str, Any]:
        """Store encoded bytes, then the sidecar that makes them count; returns the sidecar."""
        # An old sidecar beside a new file would only cost a second computation, but why.
        self.sidecar(shard).unlink(missing_ok=True)
        atomic.write(self.path(shard), data)
        with _archive(io.BytesIO(data)) as archive:
            header = _header(archive)
        info = _sidecar(header, hashlib.sha256(data).hexdigest(), len(data))
        try:
            atomic.write_json(self.sidecar(shard), info)
        except RunError:
            self.path(shard).unlink(missing_ok=True)  # a full disk gets its room back
            raise
        return info

    def remove(self, shard: str) -> None:
        """The sidecar first: without it the file does not count."""
        self.sidecar(shard).unlink(missing_ok=True)
        self.path(shard).unlink(missing_ok=True)

    def verify(self, shard: str, key: str | None = None) -> dict[str, Any]:
        """The sidecar of a shard that is whole, and answers this key; else Damaged says why not."""
        path = self.path(shard)
        if not path.exists():
            raise Damaged("its file is missing")
        info = self._read_sidecar(shard)
        digest, size = info["sha256"], info["bytes"]
        if not path.is_file():
            raise Damaged("its file is not a regular file")
        if path.stat().st_size != size:
            raise Damaged(f"its file has {path.stat().st_size} bytes instead of {size}")
        with opened(path) as file:
            if _digest(file) != digest:
                raise Damaged("its file has changed since it was written")
            try:
                with _archive(file) as archive:
                    expected = _sidecar(_header(archive), digest, size)
            except _UNREADABLE as error:
                raise Damaged("its file is not a shard") from error
        if info != expected:
            raise Damaged("its sidecar and its file disagree")
        if info["schema"] != SCHEMA or info["shard"] != shard:
            raise Damaged("it is another shard, or another version's")
        if key is not None and info["key"] != key:
            raise Damaged("it answers another request")
        return dict(info)

    def _read_sidecar(self, shard: str) -> dict[str, Any]:
        try:
            info = read_object(self.sidecar(shard))
            require_fields(info, {"sha256": str, "bytes": int})
        except FileNotFoundError:
            raise Damaged("its sidecar is missing") from None
        except Unreadable as error:
            raise Damaged("its sidecar cannot be read") from error
        return info

    def read(
        self, shard: str, names: tuple[str, ...] | None = None, digest: str | None = None
    ) -> Output:
        """Read a shard's arrays (all, or these) and meta.

        The file must have the sha256 `digest`; without one, that of its sidecar.
        """
        try:
            digest = digest or self._read_sidecar(shard)["sha256"]
            with opened(self.path(shard)) as file:
                self._require_digest(shard, file, digest)
                with _archive(file) as archive:
                    header = _header(archive)
                    arrays = {}
                    for name in header["arrays"] if names is None else names:
                        # Whole, then parsed: zipfile tests a checksum at the end of an entry.
                        arrays[name] = _array(archive.read(f"{name}.npy"))
        except (OSError, Damaged, *_UNREADABLE) as error:
            raise RunError(
                f"{self.path(shard)} cannot be read: {error}",
                "Run it again with --resume: damaged shards are redone.",
            ) from error
        return Output(arrays, header["meta"], header.get("sources", {}))

    def _require_digest(self, shard: str, file: io.BufferedIOBase, digest: str) -> None:
        """Hash the open file, unless it was hashed before and has not changed since."""
        state = os.fstat(file.fileno())
        seen = (
            digest,
            (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns),
        )
        if self._verified.get(shard) == seen:
            return
        if _digest(file) != digest:
            raise Damaged("its file has changed since it was written")
        self._verified[shard] = seen
