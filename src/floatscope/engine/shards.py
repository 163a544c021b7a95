"""Read and write shards: `<id>.shard` with a JSON header and datasets, and its sidecar `<id>.json`.

A shard's file consists of the lengths of its header, the header, and the datasets in the order of their
names. The header and each dataset are zstd frames. The header lists the compressed and uncompressed length of
each dataset. The frame of a dataset contains a description of the variables, and their arrays.

A shard counts as done only if its sidecar, which is written after the file, agrees with the file's header
and contains the key of the plan and the file's checksum. The same output gives the same bytes: names are
sorted, arrays are C-ordered and little-endian, and compression is fixed. No pickle is written or read.
"""

import hashlib
import io
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xarray as xr

from .. import atomic
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
from .plan import SCHEMA, Output, as_json

SUFFIX = ".shard"
_MAGIC = b"FSSHARD\x01"
_START = struct.Struct("<8sQQ")  # magic, bytes of the header's frame, bytes of the header itself
_DESCRIPTION = struct.Struct("<Q")  # bytes of a dataset's description
_LEVEL = 1  # measured floats hardly gain from a higher level
_ZSTD = pa.Codec("zstd", compression_level=_LEVEL)
_VARIABLE: dict[str, type] = {
    "attrs": dict,
    "coordinate": bool,
    "dims": list,
    "dtype": str,
    "shape": list,
}
_LARGEST = 4 << 30  # bytes of a shard's file, which is composed in memory
# Errors that reading an untrusted file can raise; OSError: a frame that is damaged, or of another size.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error)


class Damaged(Exception):
    """The error for a stored shard that must be redone; its message is the reason."""


def encode(shard: str, key: str, output: Output) -> bytes:
    """Return an output as the bytes of a shard's file, with the shard's id and key."""
    meta = as_json(output.meta, f"the meta of shard {shard}")
    if not isinstance(meta.get("left_out", []), list):
        raise UsageError(
            f"meta['left_out'] of shard {shard} is not a list", "Give a list of {what, why}."
        )
    packed = {name: _pack(shard, name, output.data[name]) for name in sorted(output.data)}
    frames = {name: _ZSTD.compress(content, asbytes=True) for name, content in packed.items()}
    header = {
        "schema": SCHEMA,
        "shard": shard,
        "key": key,
        "compression": f"zstd {_LEVEL}",
        "data": {name: [len(frames[name]), len(packed[name])] for name in frames},
        "meta": meta,
        "sources": as_json(output.sources, f"the sources of shard {shard}"),
    }
    text = json.dumps(header, sort_keys=True, allow_nan=False).encode("ascii")
    head = _ZSTD.compress(text, asbytes=True)
    return b"".join([_START.pack(_MAGIC, len(head), len(text)), head, *frames.values()])


def _pack(shard: str, name: str, data: xr.Dataset) -> bytes:
    """Return a dataset as bytes: its description, then its arrays in the order of their names."""
    arrays, variables = [], {}
    for variable in sorted(data.variables, key=str):
        labelled = data.variables[variable]
        array = _plain(shard, f"{name}/{variable}", labelled.values)
        arrays.append(array.tobytes())
        variables[str(variable)] = {
            "attrs": _numbers(labelled.attrs),
            "coordinate": variable in data.coords,
            "dims": list(map(str, labelled.dims)),
            "dtype": array.dtype.str,
            "shape": list(array.shape),
        }
    described = {"attrs": _numbers(data.attrs), "variables": variables}
    described = as_json(described, f"the attributes of dataset {name!r} in shard {shard}")
    text = json.dumps(described, sort_keys=True).encode("ascii")
    return b"".join([_DESCRIPTION.pack(len(text)), text, *arrays])


def _unpack(content: pa.Buffer) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a dataset's description and its arrays by name, from bytes written by `_pack`."""
    (length,) = _DESCRIPTION.unpack_from(content)
    start = _DESCRIPTION.size + length
    if max(length, start) > min(LIMIT, content.size):
        raise Unreadable(f"declares a description of {length} bytes in a dataset of {content.size}")
    described = parse_object(content[_DESCRIPTION.size : start].to_pybytes())
    require_fields(described, {"attrs": dict, "variables": dict})
    arrays = {}
    for name, about in described["variables"].items():
        require_fields(about, _VARIABLE)
        kind, shape = about["dtype"], about["shape"]
        dtype = np.dtype(kind)
        plain = dtype.str == kind and dtype.kind not in "OV" and dtype.itemsize
        if not plain or any(type(n) is not int or n < 0 for n in shape):
            raise Unreadable(f"contains an array of shape {shape!r:.80} and {kind!r:.80}")
        array = np.frombuffer(content, dtype, math.prod(shape), start)
        arrays[name] = array.reshape(shape).copy()
        start += array.nbytes
    if start != content.size:
        raise Unreadable(f"declares {start} bytes of a dataset that has {content.size}")
    return described, arrays


def _numbers(attrs: dict[Any, Any]) -> dict[str, Any]:
    """Return attributes with numpy numbers converted to Python numbers."""
    return {str(k): v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}


def _plain(shard: str, name: str, array: np.ndarray) -> np.ndarray:
    """Return an array in the stored form: fixed-width text, little-endian, C-ordered; refuse objects."""
    if array.dtype == object and all(isinstance(text, str) for text in array.flat):
        array = array.astype(str)
    if array.dtype.hasobject or array.dtype.kind == "T":
        raise UsageError(
            f"array {name!r} of shard {shard} contains Python objects",
            "Give numbers, booleans or fixed-width text.",
        )
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _header(file: io.BufferedIOBase) -> tuple[dict[str, Any], int]:
    """Return a shard file's header, and the offset of its first dataset."""
    file.seek(0)
    magic, length, size = _START.unpack(file.read(_START.size))
    if magic != _MAGIC:
        raise Unreadable("is not a shard")
    if max(length, size) > LIMIT:
        raise Unreadable(f"contains a header of more than {LIMIT >> 20} MB")
    header = parse_object(_ZSTD.decompress(file.read(length), size, asbytes=True))
    require_fields(header, {"schema": int, "shard": str, "key": str, "data": dict, "meta": dict})
    header["sources"] = texts(header, "sources")
    return header, _START.size + length


def _places(
    file: io.BufferedIOBase, header: dict[str, Any], start: int
) -> dict[str, tuple[int, int, int]]:
    """Return each dataset's offset, length and uncompressed length in bytes, by name.

    Refuse a file that declares more data than it can plausibly contain.
    """
    places, unpacked = {}, 0
    for name, (length, size) in header["data"].items():
        if any(type(n) is not int or n < 0 for n in (length, size)):
            raise Unreadable(f"contains a dataset of {length!r:.80} and {size!r:.80} bytes")
        places[name] = start, length, size
        start += length
        unpacked += size
    file_size = file.seek(0, io.SEEK_END)
    require_ratio(unpacked, file_size)
    if start != file_size:
        raise Unreadable(f"declares {start} bytes and has {file_size}")
    return places


def sources_of(data: bytes) -> dict[str, str]:
    """Return the checksums of an encoded shard's sources, by name."""
    return dict(_header(io.BytesIO(data))[0]["sources"])


def _digest(file: io.BufferedIOBase) -> str:
    """Return the sha256 of a file; raise Damaged if the file is larger than any shard."""
    if (size := file.seek(0, io.SEEK_END)) > _LARGEST:
        raise Damaged(f"its file has {size >> 20:,} MB, and a shard at most {_LARGEST >> 20:,}")
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _sidecar(header: dict[str, Any], digest: str, size: int) -> dict[str, Any]:
    """Return the content of a shard's sidecar: facts that are known without decoding the datasets."""
    facts = {name: header[name] for name in ("schema", "shard", "key", "sources")}
    left_out = header["meta"].get("left_out", [])
    return {**facts, "sha256": digest, "bytes": size, "left_out": left_out}


class Shards:
    """The folder of a run's shards, with methods that read, verify and write shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._verified: dict[str, tuple[str, tuple[int, ...]]] = {}  # digest and file state
        self._labelled: dict[tuple[str, ...], xr.Dataset] = {}  # last dataset, by variables

    def path(self, shard: str) -> Path:
        """Return the path of a shard's file."""
        return self.folder / f"{shard}{SUFFIX}"

    def sidecar(self, shard: str) -> Path:
        """Return the path of a shard's sidecar."""
        return self.folder / f"{shard}.json"

    def ids(self) -> set[str]:
        """Return the ids of all shard files and sidecars in the folder, valid or not."""
        return {path.stem for path in self.folder.glob("*") if path.suffix in (SUFFIX, ".json")}

    def write(self, shard: str, data: bytes) -> dict[str, Any]:
        """Write a shard's encoded bytes, then its sidecar; return the content of the sidecar."""
        # An old sidecar beside a new file would only cause a second computation.
        self.sidecar(shard).unlink(missing_ok=True)
        atomic.write(self.path(shard), data)
        header, _ = _header(io.BytesIO(data))
        info = _sidecar(header, hashlib.sha256(data).hexdigest(), len(data))
        try:
            atomic.write_json(self.sidecar(shard), info)
        except RunError:
            self.path(shard).unlink(missing_ok=True)  # free the space on a full disk
            raise
        return info

    def remove(self, shard: str) -> None:
        """Remove a shard's sidecar, then its file, so that after an interruption no shard counts as done."""
        self.sidecar(shard).unlink(missing_ok=True)
        self.path(shard).unlink(missing_ok=True)

    def verify(self, shard: str, key: str | None = None) -> dict[str, Any]:
        """Return the sidecar of an intact shard; raise Damaged if it is not intact or has another key."""
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
                header, start = _header(file)
                _places(file, header, start)
            except _UNREADABLE as error:
                raise Damaged("its file is not a shard") from error
        if info != _sidecar(header, digest, size):
            raise Damaged("its sidecar and its file disagree")
        if info["schema"] != SCHEMA or info["shard"] != shard:
            raise Damaged("it is another shard, or another version wrote it")
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
        """Read a shard's metadata and its datasets, or only the datasets in `names`.

        The file must have the sha256 `digest` or, without `digest`, the sha256 in its sidecar.
        """
        try:
            digest = digest or self._read_sidecar(shard)["sha256"]
            with opened(self.path(shard)) as file:
                self._require_digest(shard, file, digest)
                header, start = _header(file)
                places, data = _places(file, header, start), {}
                for name in places if names is None else names:
                    offset, length, size = places[name]
                    file.seek(offset)
                    content = _ZSTD.decompress(file.read(length), size)
                    data[name] = self._dataset(*_unpack(content))
        except MemoryError:
            raise
        except Exception as error:  # xarray and pandas do not document which exceptions they raise
            raise RunError(
                f"{self.path(shard)} cannot be read: {error}",
                "Remove it and run it again with --resume: missing shards are redone.",
            ) from error
        return Output(data, header["meta"], header["sources"])

    def _dataset(self, described: dict[str, Any], arrays: dict[str, np.ndarray]) -> xr.Dataset:
        """Build a dataset from its description and arrays.

        If the last dataset with these variables had the same coordinates, a copy of it is given the new
        values, which takes a third of the time.
        """
        names = tuple(arrays)
        last = self._labelled.get(names)
        if last is not None and _is_like(last, described, arrays):
            data = last.copy(data={name: arrays[str(name)] for name in last.data_vars})
            data.attrs = described["attrs"]
            return data
        variables: dict[str, Any] = {}
        coordinates: dict[str, Any] = {}
        for name, about in described["variables"].items():
            part = coordinates if about["coordinate"] else variables
            part[name] = about["dims"], arrays[name], about["attrs"]
        data = xr.Dataset(variables, coordinates, described["attrs"])
        if coordinates:
            self._labelled[names] = data.copy()
        return data

    def _require_digest(self, shard: str, file: io.BufferedIOBase, digest: str) -> None:
        """Raise Damaged if an open file has another sha256; a file unchanged since a check is not read."""
        state = os.fstat(file.fileno())
        version = (
            digest,
            (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns),
        )
        if self._verified.get(shard) == version:
            return
        if _digest(file) != digest:
            raise Damaged("its file has changed since it was written")
        self._verified[shard] = version


def _is_like(last: xr.Dataset, described: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
    """Return whether a dataset has the described dimensions, sizes, attributes and coordinates.

    Values of variables other than coordinates may differ.
    """
    for name, about in described["variables"].items():
        variable, array = last.variables[name], arrays[name]
        if list(variable.dims) != about["dims"] or variable.shape != array.shape:
            return False
        if variable.attrs != about["attrs"] or (name in last.coords) != about["coordinate"]:
            return False
        if about["coordinate"] and not (
            variable.dtype == array.dtype and np.array_equal(variable.values, array)
        ):
            return False
    return True
