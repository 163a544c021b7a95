"""Small tensors from the host onto the device and back, without waiting for it.

torch copies a list, and a tensor in ordinary memory, only when all that was launched before has run: in a
loop that launches ahead, each such copy is a stop.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor


def constant(numbers: Sequence[int], device: torch.device) -> Int[Tensor, " n"]:
    """These numbers on the device: copied once, the same tensor ever after. Not to be written to."""
    return _constant(tuple(numbers), device)


@lru_cache(maxsize=1024)
def _constant(numbers: tuple[int, ...], device: torch.device) -> Int[Tensor, " n"]:
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=torch.long, device=device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The same on the device, at the latest when something there reads it."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class OnItsWay:
    """Numbers on their way to the host; `arrived` waits for them alone, not for what was launched since."""

    def __init__(self, tensor: Tensor) -> None:
        self._end = None
        self._host = tensor.to("cpu", non_blocking=tensor.is_cuda)  # into pinned memory
        if tensor.is_cuda:
            self._end = torch.cuda.Event()
            self._end.record()

    def arrived(self) -> Tensor:
        if self._end is not None:
            self._end.synchronize()
        return self._host
