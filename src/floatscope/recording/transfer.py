"""Copy values from the device to the host while the device continues.

A tensor on a GPU is copied on a second stream: straight to its places where these are pinned memory, else
into pinned memory, from which threads move its parts on. Copies to the host come one after another, whatever
their streams, and the loop waits for small ones of its own. So what is posted in a step leaves behind those:
`ready` when all of the step is launched, `send` when the next forward is. Measured: in between, a batch's
copies of 3.5 ms kept every step waiting for as long. `settle` waits for all. On a CPU everything happens at
once.

Threads share one lock, which the loop needs too. So one thread waits for what arrives, and each of the others
moves its share by a single call, which holds no lock. Measured with an H200: a step of 10 ms took 18 where
eight threads waited, and up to 50 where each of them called once for every part.
"""

import heapq
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from threading import Barrier, Semaphore

import numpy as np
import torch
from torch import Tensor

# Pinned memory is scarce, and a GPU's too: so many bytes may be under way before the sender waits.
_UNIT = 16 << 20
_UNITS = 128
# On an H200's host one thread writes 7 GB/s, four 30, eight 37; decodings were fastest with eight.
_THREADS = min(8, max(1, (os.cpu_count() or 4) - 4))
_WORTH = 1 << 20  # bytes from which several threads share a tensor's parts

# A part of a tensor, as a function of the tensor's values, and its place.
Pick = Callable[[np.ndarray], np.ndarray]
Part = tuple[Pick, np.ndarray]


@dataclass(frozen=True, eq=False)
class Slot:
    """A contiguous destination; `pinned` if a GPU can write to it directly."""

    tensor: Tensor
    pinned: bool = False


@dataclass(frozen=True, eq=False)
class _Copied:
    """Copies that the device makes without threads."""

    end: torch.cuda.Event
    size: int  # bytes, which the device holds until then

    def result(self) -> None:
        """Wait for the copies."""
        self.end.synchronize()


Flight = Future[None] | _Copied  # `result` waits for it


@dataclass(frozen=True, eq=False)
class _Posted:
    tensor: Tensor
    parts: Sequence[Part] = ()
    pinned: Tensor | None = None  # the tensor's only place


class HostCopier:
    """Transfers tensors for one sender: `post`, then `ready`, later `send`; `settle` at the end."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            self._stream = torch.cuda.Stream(device)
            self._room = Semaphore(_UNITS)
            self._pool: ThreadPoolExecutor | None = None
            self._pending: list[Flight] = []
            self._before: list[Flight] = []  # of them, those that the latest `send` did not send
            self._copied: deque[_Copied] = deque()
            self._queue: list[_Posted] = []
            self._ready = torch.cuda.Event()  # all that is in the queue is computed

    def post(self, values: Tensor, slot: Slot) -> None:
        """Copy contiguous values to a slot of their dtype, at the latest by `settle`.

        The values must not change any more.
        """
        if self.cuda and slot.pinned:
            self._queue.append(_Posted(values, pinned=slot.tensor))
        else:
            self.post_parts(values, [(_identity, slot.tensor.numpy())])

    def post_parts(self, tensor: Tensor, parts: Sequence[Part]) -> None:
        """Copy parts of a tensor, each to its destination."""
        if self.cuda:
            self._queue.append(_Posted(tensor.contiguous(), parts))
        else:
            _copy_parts(tensor.cpu().numpy(), parts)

    def ready(self) -> None:
        """Mark everything launched so far as the condition for sending what was posted."""
        if self.cuda and self._queue:
            self._ready.record(torch.cuda.current_stream(self._queue[0].tensor.device))

    @torch.inference_mode()  # as the tensors are: it is called after a decoding, too
    def send(self) -> None:
        """Send what is ready."""
        if not self.cuda:
            return
        queue, self._queue = self._queue, []
        self._before = list(self._pending)
        if not queue:
            return
        size = 0
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._ready)
            for posted in queue:
                posted.tensor.record_stream(self._stream)
                if posted.pinned is None:
                    self._pending.append(self._start_copy(posted.tensor, posted.parts))
                    continue
                posted.pinned.copy_(posted.tensor, non_blocking=True)
                size += posted.tensor.nbytes
            if size:
                end = torch.cuda.Event()
                end.record(self._stream)
                self._copied.append(_Copied(end, size))
                self._pending.append(self._copied[-1])
        while sum(c.size for c in self._copied) > _UNITS * _UNIT:  # bytes that the device holds
            self._copied.popleft().result()

    def _start_copy(self, tensor: Tensor, parts: Sequence[Part]) -> Flight:
        """Copy to pinned memory, and from there by threads."""
        units = min(_UNITS, 1 + tensor.nbytes // _UNIT)
        for _ in range(units):
            self._room.acquire()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(self._stream)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        return self._pool.submit(self._finish_copy, host, arrived, parts, units)

    def wait_sent(self) -> None:
        """Wait for everything sent before the latest `send`."""
        if self.cuda:
            for future in self._before:
                future.result()
            self._pending = self._pending[len(self._before) :]
            self._before = []

    def flush(self) -> None:
        """Wait for everything posted so far."""
        self.ready()
        self.send()
        if self.cuda:
            pending, self._pending, self._before = self._pending, [], []
            self._copied.clear()
            for transfer in pending:
                transfer.result()

    def settle(self) -> None:
        """Wait for everything, and end the threads."""
        self.flush()
        if self.cuda and self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _finish_copy(
        self, host: Tensor, arrived: torch.cuda.Event, parts: Sequence[Part], units: int
    ) -> None:
        try:
            arrived.synchronize()
            if host.nbytes < _WORTH:
                _copy_parts(host.numpy(), parts)
            else:
                list(_movers().map(partial(_copy_parts, host.numpy()), shares(parts, _THREADS)))
        finally:
            self._room.release(units)


@cache
def _movers() -> ThreadPoolExecutor:
    """Return the threads that make one torch call each, which must not start further threads."""
    before, ready = torch.get_num_threads(), Barrier(_THREADS + 1)

    def begin() -> None:
        torch.set_num_threads(1)  # of this thread
        ready.wait()

    pool = ThreadPoolExecutor(_THREADS)
    for _ in range(_THREADS):
        pool.submit(begin)
    ready.wait()
    torch.set_num_threads(before)  # and of those to come
    return pool


def shares(parts: Sequence[Part], n: int) -> list[list[Part]]:
    """Divide the parts among at most n threads with about equal bytes; large parts are split."""
    sizes = tuple((len(place) if place.ndim else 1, place.nbytes) for _, place in parts)
    return [[_slice_part(*parts[i], rows) for i, rows in share] for share in _deal(sizes, n)]


@lru_cache(16)  # a step has the parts that the step before had
def _deal(sizes: tuple[tuple[int, int], ...], n: int) -> list[list[tuple[int, slice | None]]]:
    """Divide parts among n shares of about equal size; each share lists its parts and their rows.

    `sizes` has the rows and bytes of each part.
    """
    share_bytes = -(-sum(size for _, size in sizes) // n)
    pieces: list[tuple[int, int, slice | None]] = []
    for i, (rows, size) in enumerate(sizes):
        at_once = max(1, rows * share_bytes // max(1, size))
        if at_once >= rows:
            pieces.append((size, i, None))
            continue
        for start in range(0, rows, at_once):
            piece_rows = slice(start, min(rows, start + at_once))
            pieces.append((size * (piece_rows.stop - start) // rows, i, piece_rows))
    dealt: list[list[tuple[int, slice | None]]] = [[] for _ in range(min(n, len(pieces)))]
    filled = [(0, share) for share in range(len(dealt))]
    for size, i, rows_of_it in sorted(pieces, key=lambda piece: -piece[0]):
        before, least = heapq.heappop(filled)
        dealt[least].append((i, rows_of_it))
        heapq.heappush(filled, (before + size, least))
    return dealt


def _slice_part(pick: Pick, place: np.ndarray, rows: slice | None) -> Part:
    return (pick, place) if rows is None else (partial(_pick_rows, pick, rows), place[rows])


def _pick_rows(pick: Pick, rows: slice, values: np.ndarray) -> np.ndarray:
    picked = pick(values)
    return picked[rows] if picked.ndim else picked  # one number goes everywhere


def _identity(values: np.ndarray) -> np.ndarray:
    return values


def _copy_parts(values: np.ndarray, parts: Sequence[Part]) -> None:
    places = [torch.from_numpy(place) for _, place in parts]
    picked = [torch.from_numpy(pick(values)) for pick, _ in parts]
    torch._foreach_copy_(places, picked)
