"""Zarr stores of regular files alone, and one that checks each against its recorded checksum, at every read.

A trace that was opened lazily is read long after it was opened. Zarr itself would take a missing file
for zeros, and numbers that were flipped for numbers.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from ..errors import TraceError
from ..untrusted import FREE, LIMIT, Unreadable, read_bytes
from .declared import ROOT, require_held, require_unpacked

COPY_AGAIN = "Copy it again, or trace again."


def damaged(path: Path, what: str) -> TraceError:
    return TraceError(f"{path} is damaged: {what}", COPY_AGAIN)


class RegularStore(LocalStore):
    """Regular files of a directory, none of which unpacks to more than its arrays declare; read only."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, read_only=True)
        self.most = FREE  # bytes of a file, packed or not

    def require_held(
        self, arrays: Iterable[str], sizes: Sequence[int], *, steps: int | None = None
    ) -> None:
        """Refuse a store whose arrays declare more than files of these sizes hold (`declared`)."""
        described = {name: self._read(f"{name}/{ROOT}") or b"{}" for name in arrays}
        try:
            self.most = require_held(described, sizes, steps=steps)
        except Unreadable as error:
            raise damaged(self.root, error.what) from error

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
        if byte_range is not None:  # only shards are read in parts, and no trace has them
            raise damaged(self.root, f"a part of {key} is asked for")
        data = self._read(key)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if data is None else buffer.from_bytes(data)

    def _read(self, key: str) -> bytes | None:
        path = self.root / key
        if not path.exists() or path.is_dir():
            return None  # an array's part that holds nothing is not written
        try:
            data = read_bytes(path, LIMIT if path.name == ROOT else self.most)
            if path.name != ROOT:
                require_unpacked(data, self.most)
        except (FileNotFoundError, Unreadable) as error:
            raise damaged(self.root, f"{key} {error}") from error
        return data


class CheckedStore(RegularStore):
    """Files of a directory, each of the size and checksum that `files` says."""

    def __init__(self, root: Path, files: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(root)
        self.files = files

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What was written there: a file that someone added, such as .DS_Store, is not of the trace."""
        inside = f"{prefix.rstrip('/')}/" if prefix else ""
        names = (name[len(inside) :] for name in (ROOT, *self.files) if name.startswith(inside))
        for name in dict.fromkeys(name.split("/")[0] for name in names):
            yield name

    def _read(self, key: str) -> bytes | None:
        data = super()._read(key)
        if data is None and key in self.files:
            raise damaged(self.root, f"{key} is missing or cut short")
        if data is None or key == ROOT:
            return data
        if key not in self.files:
            raise damaged(self.root, f"{key} was put there since it was written")
        if (len(data), zlib.crc32(data)) != self.files[key]:
            raise damaged(self.root, f"{key} has changed since it was written")
        return data
