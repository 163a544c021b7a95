"""Two halves of the examples, by name: to choose on one and to measure on the other."""

import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool


def halves(ids: Sequence[str], seed: int = 0) -> Bool[np.ndarray, " n"]:
    """True for half of the examples (rounded up); the same whatever their order."""
    rank = np.argsort([zlib.crc32(f"{seed}/{name}".encode()) for name in ids], kind="stable")
    first = np.zeros(len(ids), dtype=bool)
    first[rank[: (len(ids) + 1) // 2]] = True
    return first
