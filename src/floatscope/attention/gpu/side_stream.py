"""Record a forward's statistics on a second CUDA stream, parallel to the network.

The statistics of a layer use many small kernels. On the network's stream, each kernel would wait for the
previous one, and the network for the last one. On a branch (the second stream, from one layer to the next)
they run beside the network's large products. A branch ends when the next layer's attention is called; until
then its inputs stay allocated. The kernels and their order do not change, so the results are identical.
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
        """Launch the context's kernels on the second stream; `read` lists the tensors that they read."""
        self._read += read
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let all later kernels of the current stream wait for the kernels of the branch."""
        if self._read:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._read.clear()
