"""Values on their way from the device to their places on the host, while the device goes on.

A tensor on a GPU is copied on a second stream into pinned memory; threads move its parts on into their
places when it has arrived, so that the pinned memory can be used again. Copies to the host come one after
another, whatever their streams: what is posted in a step leaves when `send` is called, after the next
forward has been launched, so that what the loop waits for does not queue behind it. `settle` waits for all.
On a CPU everything happens at once.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore

import numpy as np
import torch
from torch import Tensor

# Pinned memory is scarce: so many bytes may be under way before the sender waits.
_UNIT = 16 << 20
_UNITS = 128
# Memory fresh from the system is slow to write: measured on an H200's host, 2.5 GB/s by one thread, 7.5 by
# four, 10.4 by eight; more than eight gain nothing where a decoding runs beside them.
_THREADS = min(8, max(2, (os.cpu_count() or 4) - 4))
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
                self._pool = ThreadPoolExecutor(_THREADS)
            jobs = min(_THREADS if tensor.nbytes > _WORTH else 1, len(parts))
            for n in range(jobs):
                own = units if n == 0 else 0  # the first gives the room back
                job = self._pool.submit(self._arrive, host, arrived, parts[n::jobs], own)
                self._pending.append(job)

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
            _put(host.numpy(), parts)
        finally:
            if units:
                self._room.release(units)


def _whole(values: np.ndarray) -> np.ndarray:
    return values


def _put(values: np.ndarray, parts: Sequence[Part]) -> None:
    for pick, place in parts:
        np.copyto(place, pick(values), casting="same_kind")
