"""Record a forward's statistics on a second CUDA stream, parallel to the network.

The statistics of a layer use many small kernels. On the stream of the network, each of these kernels would
wait for the previous kernel, and the network would wait for the last of them. The work that is launched on
the second stream from one layer to the next is called a branch; its kernels run while the network computes
large products. A branch ends when the attention of the next layer is called; until then the tensors that the
branch reads stay allocated. The kernels and their order are the same as on one stream, so the results are
identical.
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
        """Launch the kernels of the `with` block on the second stream; `read` lists their inputs."""
        self._read += read
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let all later kernels of the current stream wait for the kernels of the branch."""
        if self._read:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._read.clear()
