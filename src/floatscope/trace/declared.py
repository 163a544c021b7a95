"""What the arrays of a store declare, held against the files that are there, before any array is read.

Zarr takes a part without a file for one filled with a default value. A store of a few kilobytes could so
declare more steps than a machine can look at, or a compressed part unpack to more than its memory.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..untrusted import FREE, RATIO, Unreadable, parse_object, require_fields, require_ratio

ROOT = "zarr.json"  # zarr 3's own name for the metadata of a group or an array
_CODECS = {"bytes", "vlen-utf8", "zstd"}  # what Floatscope writes
_TEXT = 64  # bytes of a Python string, about
_BYTES = {"bool": 1, "string": _TEXT} | {
    f"{kind}{8 * size}": size for kind in ("int", "uint", "float") for size in (1, 2, 4, 8)
}
_PARTS, _PARTS_PER_FILE = 10_000, 100  # parts that may be declared without a file for each
_ZSTD = b"\x28\xb5\x2f\xfd"


def require_held(
    arrays: Mapping[str, bytes], sizes: Sequence[int], *, steps: int | None = None
) -> int:
    """Refuse arrays that files of these sizes cannot hold; return what a part may unpack to, in bytes.

    Args:
        arrays: name → the bytes of its metadata file.
        steps: of an unfinished trace, whose arrays have room for more, how many are there.
    """
    total = parts = 0
    for name, raw in arrays.items():
        try:
            shape, chunks, item = _form(parse_object(raw), steps)
            require_ratio(math.prod(chunks) * item, sum(sizes))
        except Unreadable as error:
            raise Unreadable(f"{name}/{ROOT} {error.what}") from error
        total += math.prod(shape) * item
        parts += math.prod(-(-n // size) for n, size in zip(shape, chunks, strict=True))
    if parts > _PARTS + _PARTS_PER_FILE * len(sizes):
        raise Unreadable(f"it declares arrays of {parts:,} parts in {len(sizes):,} files")
    try:
        require_ratio(total, sum(sizes))
    except Unreadable as error:
        raise Unreadable(f"it {error.what}") from error
    return FREE + RATIO * sum(sizes)


def _form(said: dict[str, Any], steps: int | None) -> tuple[list[int], list[int], int]:
    """Shape, shape of a part, and bytes of a value."""
    grid = "chunk_grid.configuration.chunk_shape"
    require_fields(said, {"shape": list, grid: list, "data_type": str, "codecs": list})
    shape, chunks = said["shape"], said["chunk_grid"]["configuration"]["chunk_shape"]
    numbers = all(type(n) is int and n >= 0 for n in (*shape, *chunks))
    if not numbers or len(shape) != len(chunks) or 0 in chunks:
        raise Unreadable(f"has shape {shape!r:.80} in parts of {chunks!r:.80}")
    codecs = [one.get("name") if isinstance(one, dict) else one for one in said["codecs"]]
    for what in (*(c for c in codecs if c not in _CODECS), *said.get("storage_transformers", ())):
        raise Unreadable(f"names the codec {what!r:.80}: expected {', '.join(sorted(_CODECS))}")
    if said["data_type"] not in _BYTES:
        raise Unreadable(f"has data_type {said['data_type']!r:.80}")
    if steps is not None and shape:
        shape = [min(shape[0], steps), *shape[1:]]
    return shape, chunks, _BYTES[said["data_type"]]


def require_unpacked(data: bytes, most: int) -> None:
    """Refuse a zstd frame that unpacks to more than `most` bytes, or does not say to how many."""
    if not data.startswith(_ZSTD):
        return
    flags = data[4] if len(data) > 4 else 0
    single, size_flag = flags >> 5 & 1, flags >> 6
    length = (single, 2, 4, 8)[size_flag]
    start = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    field = data[start : start + length]
    size = int.from_bytes(field, "little") + (256 if length == 2 else 0)
    if not length or len(field) < length:
        raise Unreadable("does not say to how many bytes it unpacks")
    if size > most:
        raise Unreadable(f"unpacks to {size / 1e6:,.0f} MB")
