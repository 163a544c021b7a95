"""Values on their way from the device to their places on the host, while the device goes on.

A tensor on a GPU is copied on a second stream into pinned memory; threads move its parts on into their
places when it has arrived, so that the pinned memory can be used again. Copies to the host come one after
another, whatever their streams: what is posted in a step leaves when `send` is called, after the next
forward has been launched, so that what the loop waits for does not queue behind it. `settle` waits for all.
On a CPU everything happens at once.

Python's threads share one lock, and the loop that launches the next step needs it too. So one thread waits
for what arrives (waiting for a GPU keeps a core busy), and each of the others moves its share of the parts by
a single call, which holds no lock. Measured with an H200: a step of 10 ms took 18 where eight threads waited,
and up to 50 where each of them called once for every part.
"""

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier, Semaphore

import numpy as np
import torch
from torch import Tensor

# Pinned memory is scarce: so many bytes may be under way before the sender waits.
_UNIT = 16 << 20
_UNITS = 128
# Memory fresh from the system is slow to write: on an H200's host 3 GB/s by one thread, 25 by eight.
_THREADS = min(8, max(1, (os.cpu_count() or 4) - 4))
_WORTH = 1 << 20  # bytes from which several threads share a tensor's parts

# A part of a tensor, as a function of the tensor's values, and its place.
Part = tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]


class Outbox:
    """`post` tensors, `send` when there is time, `settle` at the end. One sender."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._stream = torch.cuda.Stream(device)
            self._room = Semaphore(_UNITS)
            self._pool: ThreadPoolExecutor | None = None
            self._pending: list[Future[None]] = []
            self._before: list[
                Future[None]
            ] = []  # of them, those that the latest `send` did not send
            self._queue: list[tuple[Tensor, Sequence[Part], torch.cuda.Event]] = []

    def post(self, tensor: Tensor, place: np.ndarray) -> None:
        """`place` holds the tensor's values, in its own dtype, at the latest after `settle`."""
        self.post_parts(tensor, [(_whole, place)])

    def post_parts(self, tensor: Tensor, parts: Sequence[Part]) -> None:
        """The same for parts of a tensor, each with its place. The tensor may not change any more."""
        if not self._cuda:
            _put(tensor.cpu().numpy(), parts)
            return
        tensor = tensor.contiguous()
        there = torch.cuda.Event()
        there.record()
        self._queue.append((tensor, parts, there))

    def send(self) -> None:
        """What was posted leaves."""
        if not self._cuda:
            return
        queue, self._queue = self._queue, []
        self._before = list(self._pending)
        for tensor, parts, there in queue:
            units = min(_UNITS, 1 + tensor.nbytes // _UNIT)
            for _ in range(units):
                self._room.acquire()
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(there)
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                host.copy_(tensor, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record(self._stream)
            tensor.record_stream(self._stream)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1)
            self._pending.append(self._pool.submit(self._arrive, host, arrived, parts, units))

    def arrived(self) -> None:
        """Waits until all is in its place that left before the latest `send`."""
        if self._cuda:
            for future in self._before:
                future.result()
            self._pending = self._pending[len(self._before) :]
            self._before = []

    def settle(self) -> None:
        """Waits until all that was posted is in its place."""
        self.send()
        if not self._cuda or self._pool is None:
            return
        pending, self._pending = self._pending, []
        self._pool.shutdown()
        self._pool = None
        for future in pending:
            future.result()

    def _arrive(
        self, host: Tensor, arrived: torch.cuda.Event, parts: Sequence[Part], units: int
    ) -> None:
        try:
            arrived.synchronize()
            if host.nbytes < _WORTH:
                _put(host.numpy(), parts)
            else:
                list(_movers().map(partial(_put, host.numpy()), shares(parts, _THREADS)))
        finally:
            self._room.release(units)


@cache
def _movers() -> ThreadPoolExecutor:
    """Threads for a call of torch each, which is not to start others of its own."""
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
    """The parts dealt out to at most n threads, each with about as many bytes; large ones are cut."""
    each = -(-sum(place.nbytes for _, place in parts) // n)
    pieces = [piece for part in parts for piece in _cut(part, each)]
    found: list[list[Part]] = [[] for _ in range(min(n, len(pieces)))]
    sizes = [(0, i) for i in range(len(found))]
    for piece in sorted(pieces, key=lambda piece: -piece[1].nbytes):
        size, least = heapq.heappop(sizes)
        found[least].append(piece)
        heapq.heappush(sizes, (size + piece[1].nbytes, least))
    return found


def _cut(part: Part, most: int) -> Iterator[Part]:
    """Along the first axis, in pieces of about that many bytes."""
    pick, place = part
    rows = len(place) if place.ndim else 1
    at_once = max(1, rows * most // max(1, place.nbytes))
    if at_once >= rows:
        yield part
        return
    for start in range(0, rows, at_once):
        some = slice(start, start + at_once)
        yield partial(_some, pick, some), place[some]


def _some(pick: Callable[[np.ndarray], np.ndarray], some: slice, values: np.ndarray) -> np.ndarray:
    found = pick(values)
    return found[some] if found.ndim else found  # one number goes everywhere


def _whole(values: np.ndarray) -> np.ndarray:
    return values


def _put(values: np.ndarray, parts: Sequence[Part]) -> None:
    places = [torch.from_numpy(place) for _, place in parts]
    picked = [torch.from_numpy(pick(values)) for pick, _ in parts]
    torch._foreach_copy_(places, picked)
