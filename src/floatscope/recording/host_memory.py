"""Memory for what comes from a GPU: that of traces that are gone is used again.

The system hands out pages of zeros, one fault after another, and a GPU can fill them faster than it does:
measured on an H200's host, 8 GB/s, where memory that was written to before takes 25 and more. So large arrays
go back here, not to the system, when nothing refers to them any more: up to a share of the machine's memory.
On a CPU, which computes more slowly than memory comes, nobody asks for it.
"""

import math
import os
import warnings
import weakref
from collections import deque
from threading import Lock

import numpy as np

SWITCH = "FLOATSCOPE_HOST_MEMORY"  # the share, from 0 (nothing is kept) to 1
_SHARE = 0.25
_LARGE = 4 << 20  # bytes; smaller ones are no trouble
_WASTE = 1.25  # a block may be so much larger than what is asked for


class HostMemory:
    """Blocks that nobody uses, of at most `most` bytes together; the latest are kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free: list[np.ndarray] = []  # the oldest first
        # An array may go at any moment, in any thread, even in the midst of `empty`: no lock is taken then.
        self._back: deque[np.ndarray] = deque()
        self._lock = Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """As `np.empty`."""
        size = int(np.prod(shape)) * dtype.itemsize
        if size < _LARGE or not self.most:
            return np.empty(shape, dtype)
        block = self._taken(size)
        # Behind a memoryview numpy sees no array: all parts of this one refer to it, and not to the block.
        array = np.frombuffer(block.data, dtype, size // dtype.itemsize)
        weakref.finalize(array, self._back.append, block).atexit = False
        return array.reshape(shape)

    def free(self) -> int:
        """Bytes that are kept for later."""
        with self._lock:
            self._collect()
            return sum(block.nbytes for block in self._free)

    def _taken(self, size: int) -> np.ndarray:
        with self._lock:
            self._collect()
            fits = [n for n, one in enumerate(self._free) if size <= one.nbytes <= _WASTE * size]
            if fits:
                return self._free.pop(min(fits, key=lambda n: self._free[n].nbytes))
        return np.empty(size, np.uint8)

    def _collect(self) -> None:
        while self._back:
            self._free.append(self._back.popleft())
        while sum(block.nbytes for block in self._free) > self.most:
            self._free.pop(0)


def machine_memory() -> int:
    """Bytes; 0 where the system does not say."""
    if not hasattr(os, "sysconf"):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def share() -> float:
    """By default a quarter of the machine's memory; FLOATSCOPE_HOST_MEMORY says otherwise."""
    said = os.environ.get(SWITCH, str(_SHARE))
    try:
        found = float(said)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        warnings.warn(
            f"{SWITCH} is {said!r}, not a number from 0 to 1: {_SHARE} is taken", stacklevel=2
        )
        return _SHARE
    return found


host_memory = HostMemory(int(share() * machine_memory()))
