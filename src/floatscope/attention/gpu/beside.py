"""Statistics beside a forward that is recorded: on a second stream, so that the network goes on meanwhile.

The kernels of a layer's statistics are many and small. Recorded in line, each would wait for the one before
and the network for the last. On a branch they run where its large products leave room. A branch ends where
the next layer attends; until then, what it reads is not given to anyone else. The kernels and their order
among themselves are the same: so are the numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Beside:
    """One branch at a time, on the device that is current."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._read: list[Tensor | None] = []

    @contextmanager
    def branch(self, *read: Tensor | None) -> Iterator[None]:
        """What is launched inside reads these, and runs beside what is launched after it."""
        self._read += read
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """All that follows comes after what was launched inside."""
        if self._read:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._read.clear()
