"""Values on their way from the device to their places on the host, while the device goes on.

A tensor on a GPU is copied on a second stream into pinned memory; threads move it on into its place
when it has arrived, so that the pinned memory can be used again. `settle` waits for all. On a CPU
everything happens at once.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore

import numpy as np
import torch
from torch import Tensor

# Pinned memory is scarce: so many bytes may be under way before the sender waits.
_UNIT = 16 << 20
_UNITS = 128
_THREADS = 4  # memory fresh from the system is slow to write: one thread does not keep up


class Outbox:
    """`post` tensors, `settle` at the end. One sender."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._stream = torch.cuda.Stream(device)
            self._room = Semaphore(_UNITS)
            self._pool: ThreadPoolExecutor | None = None
            self._pending: list[Future[None]] = []

    def post(self, tensor: Tensor, place: np.ndarray) -> None:
        """`place` holds the tensor's values, in its own dtype, at the latest after `settle`."""
        if not self._cuda:
            _put(tensor.cpu(), place)
            return
        tensor = tensor.contiguous()
        units = min(_UNITS, 1 + tensor.nbytes // _UNIT)
        for _ in range(units):
            self._room.acquire()
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(self._stream)
        tensor.record_stream(self._stream)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS)
        self._pending.append(self._pool.submit(self._arrive, host, arrived, place, units))

    def settle(self) -> None:
        """Waits until all that was posted is in its place."""
        if not self._cuda or self._pool is None:
            return
        pending, self._pending = self._pending, []
        self._pool.shutdown()
        self._pool = None
        for future in pending:
            future.result()

    def _arrive(
        self, host: Tensor, arrived: torch.cuda.Event, place: np.ndarray, units: int
    ) -> None:
        try:
            arrived.synchronize()
            _put(host, place)
        finally:
            self._room.release(units)


def _put(values: Tensor, place: np.ndarray) -> None:
    np.copyto(place, values.numpy(), casting="same_kind")
