"""A zarr store of regular files, each of which is compared with its recorded checksum at every read.

A lazy trace may be read long after it was opened, and zarr would read a missing file as zeros; the checksums
detect this. The metadata of a store of a few kilobytes may declare arrays that are larger than the memory of
a machine, so the declared sizes are compared with the sizes of the existing files before any array is read.
"""

import asyncio
import math
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from .. import untrusted
from ..errors import TraceError
from ..untrusted import FREE, LIMIT, RATIO, Unreadable, require_ratio

Prototype = BufferPrototype | None
Part = ByteRequest | None
COPY_AGAIN = "Copy it again, or trace again."
ROOT = "zarr.json"  # zarr 3's own name for the metadata of a group or an array
_CODECS = {"bytes", "vlen-utf8", "zstd"}  # codecs that Floatscope writes
_TEXT = 64  # approximate bytes of a Python string
_KINDS = ("int", "uint", "float")
_BYTES = {f"{kind}{8 * size}": size for kind in _KINDS for size in (1, 2, 4, 8)}
_BYTES |= {"bool": 1, "string": _TEXT}
_PARTS, _PARTS_PER_FILE = 10_000, 100  # limits on declared parts without a file
_ZSTD = b"\x28\xb5\x2f\xfd"


def damaged(path: Path, problem: str) -> TraceError:
    return TraceError(f"{path} is damaged: {problem}", COPY_AGAIN)


class CheckedStore(LocalStore):
    """Read-only store of the regular files of a directory, with limits on their unpacked size.

    `files` contains the size and checksum of each file. An unfinished trace has no such list, so no checksum
    of its files is verified.
    """

    def __init__(self, root: Path, files: Mapping[str, tuple[int, int]] | None = None) -> None:
        super().__init__(root, read_only=True)
        self.files = files
        self._limit = FREE  # limit on bytes of a file, packed or unpacked

    def require_held(
        self, arrays: Iterable[str], sizes: Sequence[int], *, steps: int | None = None
    ) -> None:
        """Raise an error if the arrays declare more data than files of these sizes can contain.

        For an unfinished trace, whose arrays have room for more steps, `steps` is the number of steps written
        so far.
        """
        stored = sum(sizes)
        total = parts = 0
        for name in arrays:
            if not name or PurePosixPath(name).name != name:
                raise ValueError(f"{name!r:.80} is not the name of an array")
            described = f"{name}/{ROOT}"
            with self._naming(described):
                metadata = untrusted.parse_object(self._read(described) or b"{}")
                shape, chunks, item = _form(metadata, steps)
                require_ratio(math.prod(chunks) * item, stored)
            total += math.prod(shape) * item
            parts += math.prod(-(-n // size) for n, size in zip(shape, chunks, strict=True))
        with self._naming("it"):
            if parts > _PARTS + _PARTS_PER_FILE * len(sizes):
                raise Unreadable(f"declares arrays of {parts:,} parts in {len(sizes):,} files")
            require_ratio(total, stored)
        self._limit = FREE + RATIO * stored

    async def get(
        self, key: str, prototype: Prototype = None, byte_range: Part = None
    ) -> Buffer | None:
        part: Any = {"prototype": prototype, "byte_range": byte_range}
        return await asyncio.to_thread(self.get_sync, key, **part)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, Part]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    def get_sync(
        self, key: str, *, prototype: Prototype = None, byte_range: Part = None
    ) -> Buffer | None:
        if byte_range is not None:  # only shards, which traces do not have, are read in parts
            raise damaged(self.root, f"a partial read of {key} was requested")
        data = self._read(key)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if data is None else buffer.from_bytes(data)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of recorded files and folders in `prefix`; files added later are ignored."""
        inside = f"{prefix.rstrip('/')}/" if prefix else ""
        names = (ROOT, *(self.files or ()))
        parts = (name[len(inside) :].split("/")[0] for name in names if name.startswith(inside))
        for name in dict.fromkeys(parts):
            yield name

    def _read(self, key: str) -> bytes | None:
        data, files = self._read_regular(key), self.files
        if files is None or (key == ROOT and data is not None):
            return data
        if data is None and key in files:
            raise damaged(self.root, f"{key} is missing or cut short")
        if data is not None and key not in files:
            raise damaged(self.root, f"{key} was added after the trace was written")
        if data is not None and (len(data), zlib.crc32(data)) != files[key]:
            raise damaged(self.root, f"{key} has changed since it was written")
        return data

    def _read_regular(self, key: str) -> bytes | None:
        path = self.root / key
        if not path.exists() or path.is_dir():
            return None  # empty parts of an array are not written
        with self._naming(key):
            if path.name == ROOT:
                return untrusted.read_bytes(path, LIMIT)
            data = untrusted.read_bytes(path, self._limit)
            _require_unpacked(data, self._limit)
            return data

    @contextmanager
    def _naming(self, subject: str) -> Iterator[None]:
        """Convert read errors in the `with` block to TraceError; the message begins with `subject`."""
        try:
            yield
        except (FileNotFoundError, Unreadable) as error:
            raise damaged(self.root, f"{subject} {error}") from error


def _form(metadata: dict[str, Any], steps: int | None) -> tuple[list[int], list[int], int]:
    """Return an array's shape (cut to `steps`), the shape of a chunk, and the bytes per value.

    Raises Unreadable for metadata that Floatscope does not write.
    """
    grid = "chunk_grid.configuration.chunk_shape"
    kinds = {"shape": list, grid: list, "data_type": str, "codecs": list}
    untrusted.require_fields(metadata, kinds)
    shape, chunks = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
    numbers = all(type(n) is int and n >= 0 for n in (*shape, *chunks))
    if not numbers or len(shape) != len(chunks) or 0 in chunks:
        raise Unreadable(f"has shape {shape!r:.80} in parts of {chunks!r:.80}")
    codecs = [c.get("name") if isinstance(c, dict) else c for c in metadata["codecs"]]
    refused = [codec for codec in codecs if codec not in _CODECS]
    for codec in (*refused, *metadata.get("storage_transformers", ())):
        raise Unreadable(f"names the codec {codec!r:.80}: expected {', '.join(sorted(_CODECS))}")
    if metadata["data_type"] not in _BYTES:
        raise Unreadable(f"has data_type {metadata['data_type']!r:.80}")
    if steps is not None and shape:
        shape = [min(shape[0], steps), *shape[1:]]
    return shape, chunks, _BYTES[metadata["data_type"]]


def _require_unpacked(data: bytes, limit: int) -> None:
    """Raise an error if a zstd frame unpacks to more than `limit` bytes or does not state its size."""
    if not data.startswith(_ZSTD):
        return
    flags = data[4] if len(data) > 4 else 0
    single, size_flag = flags >> 5 & 1, flags >> 6
    length = (single, 2, 4, 8)[size_flag]
    start = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    field = data[start : start + length]
    size = int.from_bytes(field, "little") + (256 if length == 2 else 0)
    if not length or len(field) < length:
        raise Unreadable("does not state its unpacked size")
    if size > limit:
        raise Unreadable(f"unpacks to {size / 1e6:,.0f} MB")
