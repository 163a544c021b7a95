"""Copy values from the device to the host while the device continues.

A tensor on a GPU is copied on a second stream. If its destination is pinned memory, the tensor is copied
directly to the destination; otherwise it is copied to a pinned buffer, from which threads copy its parts to
their destinations. Copies to the host run one after another, even on different streams, and the decoding loop
waits for its own small copies. `post` therefore only queues the copies of a step, `ready` marks them when the
whole step has been launched, and `send` starts them when the next forward is launched. When the copies of a
batch, which take 3.5 ms, were started earlier, they delayed every step by 3.5 ms. `settle` waits for all
copies. On a CPU every copy is made immediately.

Python threads share one lock (the GIL), which the decoding loop also needs. One thread therefore waits for
the copies from the device, and every other thread copies its share in a single call that releases the lock.
On an H200, a step of 10 ms took 18 ms when eight threads waited for copies, and up to 50 ms when each thread
made one call per part.
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

# Pinned memory and GPU memory are scarce: `post` waits while _UNITS × _UNIT bytes are being copied.
_UNIT = 16 << 20
_UNITS = 128
# On an H200's host one thread writes 7 GB/s, four threads 30, eight 37; decoding was fastest with eight.
_THREADS = min(8, max(1, (os.cpu_count() or 4) - 4))
_WORTH = 1 << 20  # tensors of at least so many bytes are divided among threads

# A part of a tensor, as a function of the tensor's values, and its destination.
Pick = Callable[[np.ndarray], np.ndarray]
Part = tuple[Pick, np.ndarray]


@dataclass(frozen=True, eq=False)
class Slot:
    """A contiguous destination; `pinned` if a GPU can write to it directly."""

    tensor: Tensor
    pinned: bool = False


@dataclass(frozen=True, eq=False)
class _Copied:
    """Copies from the device directly to pinned destinations."""

    end: torch.cuda.Event
    size: int  # bytes that stay on the device until the copies end

    def result(self) -> None:
        """Wait for the copies."""
        self.end.synchronize()


Flight = Future[None] | _Copied  # `result` waits for the copy


@dataclass(frozen=True, eq=False)
class _Posted:
    tensor: Tensor
    parts: Sequence[Part] = ()
    pinned: Tensor | None = None  # the only destination


class HostCopier:
    """Asynchronous copier of tensors to the host, for one sender.

    Call `post` for each tensor of a step, then `ready`, and `send` when the next forward is launched. Call
    `settle` at the end.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            self._stream = torch.cuda.Stream(device)
            self._room = Semaphore(_UNITS)
            self._pool: ThreadPoolExecutor | None = None
            self._pending: list[Flight] = []
            self._before: list[Flight] = []  # the pending copies of earlier calls of `send`
            self._copied: deque[_Copied] = deque()
            self._queue: list[_Posted] = []
            self._ready = torch.cuda.Event()  # recorded after the queued tensors are computed

    def post(self, values: Tensor, slot: Slot) -> None:
        """Queue a copy of contiguous values to a slot of their dtype.

        The values must not change after this call. The copy is complete at the latest when `settle` returns.
        """
        if self.cuda and slot.pinned:
            self._queue.append(_Posted(values, pinned=slot.tensor))
        else:
            self.post_parts(values, [(_identity, slot.tensor.numpy())])

    def post_parts(self, tensor: Tensor, parts: Sequence[Part]) -> None:
        """Queue copies of parts of a tensor, each to its destination."""
        if self.cuda:
            self._queue.append(_Posted(tensor.contiguous(), parts))
        else:
            _copy_parts(tensor.cpu().numpy(), parts)

    def ready(self) -> None:
        """Mark the point after which posted copies may start: when all kernels launched so far have run."""
        if self.cuda and self._queue:
            self._ready.record(torch.cuda.current_stream(self._queue[0].tensor.device))

    @torch.inference_mode()  # the tensors are inference tensors
    def send(self) -> None:
        """Start the posted copies."""
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
        while sum(c.size for c in self._copied) > _UNITS * _UNIT:  # bytes still on the device
            self._copied.popleft().result()

    def _start_copy(self, tensor: Tensor, parts: Sequence[Part]) -> Flight:
        """Start a copy to a pinned buffer, from which threads copy the parts."""
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
        """Wait for all copies that calls of `send` before the latest one started."""
        if self.cuda:
            for future in self._before:
                future.result()
            self._pending = self._pending[len(self._before) :]
            self._before = []

    def flush(self) -> None:
        """Start all posted copies, and wait for them."""
        self.ready()
        self.send()
        if self.cuda:
            pending, self._pending, self._before = self._pending, [], []
            self._copied.clear()
            for transfer in pending:
                transfer.result()

    def settle(self) -> None:
        """Wait for all copies, and end the threads."""
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
    """Return the pool of threads that copy shares; torch uses a single thread within each."""
    before, ready = torch.get_num_threads(), Barrier(_THREADS + 1)

    def begin() -> None:
        torch.set_num_threads(1)  # for this thread
        ready.wait()

    pool = ThreadPoolExecutor(_THREADS)
    for _ in range(_THREADS):
        pool.submit(begin)
    ready.wait()
    torch.set_num_threads(before)  # for new threads
    return pool


def shares(parts: Sequence[Part], n: int) -> list[list[Part]]:
    """Divide the parts among at most n threads with about equal bytes; large parts are split."""
    sizes = tuple((len(place) if place.ndim else 1, place.nbytes) for _, place in parts)
    return [[_slice_part(*parts[i], rows) for i, rows in share] for share in _deal(sizes, n)]


@lru_cache(16)  # steps mostly have the same parts
def _deal(sizes: tuple[tuple[int, int], ...], n: int) -> list[list[tuple[int, slice | None]]]:
    """Divide parts into at most n shares of about equal size; return the (part, rows) pairs of each share.

    `sizes` contains the number of rows and of bytes of each part. `rows` is None for an undivided part.
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
    return picked[rows] if picked.ndim else picked  # a scalar is not sliced


def _identity(values: np.ndarray) -> np.ndarray:
    return values


def _copy_parts(values: np.ndarray, parts: Sequence[Part]) -> None:
    places = [torch.from_numpy(place) for _, place in parts]
    picked = [torch.from_numpy(pick(values)) for pick, _ in parts]
    torch._foreach_copy_(places, picked)
