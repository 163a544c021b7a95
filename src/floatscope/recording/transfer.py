"""Arrays on their way from the device to the host, while the device goes on.

A tensor on a GPU is copied on a second stream into pinned memory; threads move it on into memory of
its own when it has arrived, so that the pinned memory can be used again. `settle` waits for all and
hands them over. On a CPU everything happens at once.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore

import numpy as np
import torch
from torch import Tensor

Sink = Callable[[np.ndarray], object]
# Pinned memory is scarce: so many bytes may be under way before the sender waits.
_UNIT = 16 << 20
_UNITS = 128
_THREADS = 4  # memory fresh from the system is slow to write: one thread does not keep up


class Outbox:
    """`post` tensors, `settle` at the end. One sender; arrays arrive in the order of posting."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._stream = torch.cuda.Stream(device)
            self._room = Semaphore(_UNITS)
            self._pool: ThreadPoolExecutor | None = None
            self._pending: list[tuple[Future[np.ndarray], Sink]] = []

    def post(self, tensor: Tensor, dtype: np.dtype, sink: Sink) -> None:
        """`sink` is called with the tensor's values as an array of its own, at the latest by
        `settle`."""
        if not self._cuda:
            sink(tensor.cpu().numpy().astype(dtype))
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
        self._pending.append((self._pool.submit(self._arrive, host, arrived, dtype, units), sink))

    def settle(self) -> None:
        """Waits until all that was posted has been handed over."""
        if not self._cuda or self._pool is None:
            return
        pending, self._pending = self._pending, []
        self._pool.shutdown()
        self._pool = None
        for future, sink in pending:
            sink(future.result())

    def _arrive(
        self, host: Tensor, arrived: torch.cuda.Event, dtype: np.dtype, units: int
    ) -> np.ndarray:
        try:
            arrived.synchronize()
            return host.numpy().astype(dtype)  # a copy: the pinned memory is used again
        finally:
            self._room.release(units)
