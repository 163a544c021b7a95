"""Record a forward's statistics on a second stream, so that the network continues meanwhile.

The kernels of a layer's statistics are many and small. Recorded in line, each would wait for the one
before, and the network for the last. On a branch they run while the network's large products leave room.
A branch ends when the next layer attends; until then its inputs stay allocated. Kernels and their order
are the same, so the numbers are too.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    """A CUDA stream for one branch at a time, on the current device."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._read: list[Tensor | None] = []

    @contextmanager
    def branch(self, *read: Tensor | None) -> Iterator[None]:
        """Run what is launched inside on the branch; `read` are the tensors that it reads."""
        self._read += read
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Wait for the branch before whatever is launched next."""
        if self._read:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._read.clear()
