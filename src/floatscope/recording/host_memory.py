"""Reuse and pin host memory for arrays that are copied from a GPU.

On an H200's host, the system allocates new pages at 8 GB/s. A GPU writes into pinned memory at 55 GB/s, but
pinning takes 35 ms per GB, during which no kernel is launched. This module therefore collects large arrays
that are no longer referenced, reuses their memory, and pins the memory when it is reused. The memory kept for
reuse and the pinned memory are each limited to a share of the machine's memory. Models on a CPU do not use
this module.
"""

import math
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np
import torch

SWITCH = "FLOATSCOPE_HOST_MEMORY"  # the share, from 0 (nothing is kept or pinned) to 1
_SHARE = 0.25
_LARGE = 4 << 20  # bytes; smaller arrays are not reused
_WASTE = 1.25  # largest ratio of block size to requested size
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # memory limit of a container

Pin = Callable[[int, int], bool]  # (address, bytes) → whether pinning succeeded
Small = Callable[[int], np.ndarray]  # bytes → a pinned array


class HostMemory:
    """Pool of unused memory blocks of at most `limit` bytes in total; the oldest are released first.

    `pin` is called for each reused block, as long as at most `limit` bytes are pinned; `unpin` is called
    before a pinned block is released. `small` allocates pinned arrays that are too small for a block; these
    arrays count towards the limit.
    """

    def __init__(
        self,
        limit: int,
        pin: Pin | None = None,
        unpin: Callable[[int], None] | None = None,
        small: Small | None = None,
    ) -> None:
        self.limit, self.pinned = limit, 0
        self._pin, self._unpin, self._small = pin, unpin, small
        self._addresses: set[int] = set()  # of pinned blocks
        self._free: list[np.ndarray] = []  # the oldest first
        # An array may be freed at any time, in any thread, even during `empty`, so freeing takes no lock.
        self._returned: deque[np.ndarray] = deque()
        self._little: deque[int] = deque()  # sizes of freed small arrays
        self._lock = Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, like `np.empty`, in reused memory if possible."""
        size = int(np.prod(shape)) * dtype.itemsize
        if not self.limit:
            return np.empty(shape, dtype)
        if size < _LARGE:
            return self._of_few_bytes(shape, dtype, size)
        block = self._take(size)
        # The memoryview hides the block from numpy, so slices refer to `array`, not to the block.
        array = np.frombuffer(block.data, dtype, size // dtype.itemsize)
        weakref.finalize(array, self._returned.append, block).atexit = False
        return array.reshape(shape)

    def free(self) -> int:
        """Return the number of bytes kept for reuse."""
        with self._lock:
            self._collect()
            return sum(block.nbytes for block in self._free)

    def _take(self, size: int) -> np.ndarray:
        with self._lock:
            self._collect()
            fits = [n for n, b in enumerate(self._free) if size <= b.nbytes <= _WASTE * size]
            if not fits:
                return np.empty(size, np.uint8)
            block = self._free.pop(min(fits, key=self._worse))
            self._pin_again(block)
            return block

    def _of_few_bytes(self, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
        with self._lock:
            while self._little:
                self.pinned -= self._little.popleft()
            if self._small is None or not size or self.pinned + size > self.limit:
                return np.empty(shape, dtype)
            self.pinned += size
        array = self._small(size)
        weakref.finalize(array, self._little.append, size).atexit = False
        return array.view(dtype).reshape(shape)  # both refer to `array`

    def _worse(self, n: int) -> tuple[bool, int]:
        """Return the sort key of free block n: pinned memory first, then the smallest block."""
        block = self._free[n]
        return block.ctypes.data not in self._addresses, block.nbytes

    def _pin_again(self, block: np.ndarray) -> None:
        address, size = block.ctypes.data, block.nbytes
        if self._pin is None or address in self._addresses:
            return
        idle = [b for b in self._free if b.ctypes.data in self._addresses]
        while idle and self.pinned + size > self.limit:
            self._let_go(idle.pop(0))  # unpins the block, which stays
        if self.pinned + size <= self.limit and self._pin(address, size):
            self._addresses.add(address)
            self.pinned += size

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
        while sum(block.nbytes for block in self._free) > self.limit:
            self._let_go(self._free.pop(0))

    def _let_go(self, block: np.ndarray) -> None:
        if block.ctypes.data in self._addresses:
            assert self._unpin is not None
            self._addresses.remove(block.ctypes.data)
            self.pinned -= block.nbytes
            self._unpin(block.ctypes.data)


def _cuda_pin(address: int, size: int) -> bool:
    if int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0:
        return True
    with suppress(RuntimeError):  # clear the error, which the next call would raise
        torch.zeros(1, device="cuda")
    return False


def _cuda_unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


def _cuda_small(size: int) -> np.ndarray:
    """Return an array of `size` bytes of pinned memory from torch, which caches small blocks."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


def machine_memory() -> int:
    """Return the memory of the machine or its container in bytes; 0 if unknown."""
    if not hasattr(os, "sysconf"):
        return 0
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max": no limit
        size = min(size, int(_LIMIT.read_text()))
    return size


def share() -> float:
    """Return the share of the machine's memory to use: FLOATSCOPE_HOST_MEMORY, or else a quarter."""
    setting = os.environ.get(SWITCH, str(_SHARE))
    try:
        fraction = float(setting)
    except ValueError:
        fraction = math.nan
    if not 0 <= fraction <= 1:
        warnings.warn(
            f"{SWITCH} is {setting!r}, not a number from 0 to 1: using {_SHARE}", stacklevel=2
        )
        return _SHARE
    return fraction


@cache
def host_memory() -> HostMemory:
    """Return the HostMemory of this process; its limit is the share divided by the number of GPUs."""
    limit = int(share() * machine_memory() / max(1, torch.cuda.device_count()))
    return HostMemory(limit, _cuda_pin, _cuda_unpin, _cuda_small)
