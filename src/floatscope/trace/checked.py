"""A zarr store that checks every file against its recorded checksum, whenever it is read.

A trace that was opened lazily is read long after it was opened. Zarr itself would take a missing file
for zeros, and numbers that were flipped for numbers.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from ..errors import TraceError

ROOT = "zarr.json"  # zarr 3's own name for a group's metadata


def damaged(path: Path, what: str) -> TraceError:
    return TraceError(f"{path} is damaged: {what}", "Copy it again, or trace again.")


class CheckedStore(LocalStore):
    """Files of a directory, each of the size and checksum that `files` says; read only."""

    def __init__(self, root: Path, files: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(root, read_only=True)
        self.files = files

    def with_read_only(self, read_only: bool = False) -> "CheckedStore":
        if not read_only:
            raise ValueError("a checked store is read only")
        return self

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What was written there: a file that someone added, such as .DS_Store, is not of the trace."""
        inside = f"{prefix.rstrip('/')}/" if prefix else ""
        names = (name[len(inside) :] for name in (ROOT, *self.files) if name.startswith(inside))
        for name in dict.fromkeys(name.split("/")[0] for name in names):
            yield name

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        return await asyncio.to_thread(
            self.get_sync, key, prototype=prototype, byte_range=byte_range
        )

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        data = self._read(key)
        if data is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(_part(byte_range)(data))

    def _read(self, key: str) -> bytes | None:
        try:
            data = (self.root / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            if key in self.files:
                raise damaged(self.root, f"{key} is missing or cut short") from None
            return None  # an array's part that holds nothing is not written
        except OSError as error:
            raise damaged(self.root, f"{key} cannot be read: {error.strerror}") from error
        if key == ROOT:
            return data
        if key not in self.files:
            raise damaged(self.root, f"{key} was put there since it was written")
        if (len(data), zlib.crc32(data)) != self.files[key]:
            raise damaged(self.root, f"{key} has changed since it was written")
        return data


def _part(wanted: ByteRequest | None) -> Callable[[bytes], bytes]:
    if isinstance(wanted, RangeByteRequest):
        return lambda data: data[wanted.start : wanted.end]
    if isinstance(wanted, OffsetByteRequest):
        return lambda data: data[wanted.offset :]
    if isinstance(wanted, SuffixByteRequest):
        return lambda data: data[max(0, len(data) - wanted.suffix) :]
    return lambda data: data
