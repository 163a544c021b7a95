"""Move small tensors between host and device without waiting for the device.

torch copies a list, or a tensor in pageable memory, only after all launched work has run. A loop that
launches work in advance would wait for the device at each such copy.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor


def constant(numbers: Sequence[int], device: torch.device) -> Int[Tensor, " n"]:
    """Return a read-only tensor of these numbers on the device; equal calls return the same tensor."""
    return _constant(tuple(numbers), device)


@lru_cache(maxsize=1024)
def _constant(numbers: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.long, device=device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device; if it must be copied, do not wait for the device."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class PendingCopy:
    """A copy of a tensor to the host in progress. `wait` waits for the copy, not for later work."""

    def __init__(self, tensor: Tensor) -> None:
        self._end = None
        self._host = tensor.to("cpu", non_blocking=tensor.is_cuda)  # into pinned memory
        if tensor.is_cuda:
            self._end = torch.cuda.Event()
            self._end.record()

    def wait(self) -> Tensor:
        """Wait until the copy is complete, and return the tensor on the host."""
        if self._end is not None:
            self._end.synchronize()
        return self._host
