"""Arrays on their way from the device to the host, in order, while the device goes on.

A tensor on a GPU is copied on a second stream into pinned memory, and a thread hands the array over
when it has arrived; whoever wants the results calls `settle`. On a CPU everything happens at once.
"""

from collections.abc import Callable
from queue import Queue
from threading import Semaphore, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

Sink = Callable[[np.ndarray], object]
# Pinned memory is scarce: so many bytes may be under way before the sender waits.
_UNIT = 16 << 20
_UNITS = 128


class Outbox:
    """`post` tensors, `settle` at the end. One sender; arrays arrive in the order of posting."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._stream = torch.cuda.Stream(device)
            self._queue: Queue[Any] = Queue()
            self._room = Semaphore(_UNITS)
            self._failure: BaseException | None = None
            self._thread: Thread | None = None

    def post(self, tensor: Tensor, dtype: np.dtype, sink: Sink) -> None:
        """`sink` is called with the tensor's values as an array of its own."""
        if not self._cuda:
            sink(tensor.cpu().numpy().astype(dtype))
            return
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
        if self._thread is None:
            self._thread = Thread(target=self._deliver, daemon=True)
            self._thread.start()
        self._queue.put((host, arrived, dtype, sink, units))

    def settle(self) -> None:
        """Waits until all that was posted has been handed over."""
        if self._cuda and self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
            if self._failure is not None:
                raise self._failure

    def _deliver(self) -> None:
        while (item := self._queue.get()) is not None:
            host, arrived, dtype, sink, units = item
            try:
                if self._failure is None:
                    arrived.synchronize()
                    sink(host.numpy().astype(dtype))  # a copy: the pinned memory is used again
            except BaseException as failure:  # told to whoever settles
                self._failure = failure
            finally:
                self._room.release(units)
