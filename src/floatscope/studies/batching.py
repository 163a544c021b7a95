"""Choose how many examples a study traces together: on a GPU, as many as fit into the free memory.

The first example is traced alone, to measure how much memory one position takes. Memory of the device is in
use during the trace. Memory of the host is in use until the trace has been measured. The sizes of later
batches are computed from both amounts. If the device runs out of memory nevertheless, the batch is halved. On
a CPU, larger batches are not faster, and a batch has one example unless the request gives a number. The size
of the batches changes only the last digits of measured values.
"""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..errors import ModelError
from ..instrument import Model
from ..models import graphs
from ..models.devices import devices
from ..sequences.prompt import Encoded
from ..trace import Trace

_ON_DEVICE = 0.7  # share of free memory to use; the rest is a margin for errors of the estimate
_ON_HOST = 0.25  # share of free memory to use; other workers need the rest
# bytes of traces; with the values computed from them a worker uses about 4 GB
_HOST_ROOM = 3_000_000_000
_AT_ONCE = 2  # batches in memory: one is measured while the next is traced
# Positions of a forward that keep a GPU busy. A larger batch gains nothing, and is measured later.
_BUSY = 4096
Tracing = Callable[[list[Encoded]], list[Trace]]


class Gpu:
    """A meter of a GPU's free memory, the host's free memory, and the GPU memory that a trace takes."""

    def __init__(self, model: Model) -> None:
        self._model, self._before = model, 0

    def free(self) -> int:
        """Return the free bytes of the GPU, including memory that torch reserves but does not use."""
        with torch.cuda.device(self._model.device):
            return graphs.free_memory()

    def host(self) -> int:
        """Return the bytes of host memory that are available without swapping."""
        return free_on_host()

    def begin(self, *, anew: bool) -> None:
        """Start measuring peak memory; with `anew`, release recorded forwards before measuring."""
        if anew:
            self.release()
        torch.cuda.reset_peak_memory_stats(self._model.device)
        self._before = torch.cuda.memory_allocated(self._model.device)

    def peak_bytes(self) -> int:
        """Return the largest number of bytes in use on the GPU since `begin`, beyond those in use then."""
        return torch.cuda.max_memory_allocated(self._model.device) - self._before

    def release(self) -> None:
        """Release recorded forwards, and memory that torch keeps for reuse."""
        graphs.store_of(self._model.net).forget()
        gc.collect()
        torch.cuda.empty_cache()


@dataclass
class Batching:
    """The sizes of batches for one kind of trace: `fixed` examples, or as many as fit into memory."""

    fixed: int | None = None
    memory: Gpu | None = None  # None: memory is not measured, as on a CPU
    limit: int | None = None  # most examples of a batch, set when a larger batch ran out of memory
    positions: float = math.inf  # most positions of a batch
    sizes: list[int] = field(default_factory=list)  # of all batches so far
    _per_position: tuple[float, float] | None = None  # bytes on device and host

    @classmethod
    def for_model(cls, model: Model, fixed: int | None) -> "Batching":
        """Create the batching of a model. Memory is measured only if the whole model is on one GPU."""
        one_gpu = [device.type for device in devices(model.net)] == ["cuda"]
        # Whether each step runs a forward of every position.
        full_forwards = model.is_diffusion and model.block is None
        return cls(
            fixed, Gpu(model) if one_gpu else None, positions=_BUSY if full_forwards else math.inf
        )

    def batches(
        self, prompts: Sequence[Encoded], length: int, trace: Tracing
    ) -> Iterator[tuple[int, list[Trace]]]:
        """Trace the prompts in batches; yield the index of each batch's first prompt, and the batch's traces.

        `length` is the number of tokens generated after a prompt; `trace` traces one batch.
        """
        start = 0
        while start < len(prompts):
            batch = list(prompts[start : start + self.size(prompts[start:], length)])
            traces = self._attempt(batch, length, trace)
            if traces is None:
                continue  # out of memory: try again with fewer examples
            self.sizes.append(len(batch))
            yield start, traces
            start += len(batch)

    def size(self, prompts: Sequence[Encoded], length: int) -> int:
        """Return the size of the next batch: how many of `prompts`, from the first, are traced together."""
        limit = min(len(prompts), self.limit or len(prompts))
        if self.fixed is not None:
            return min(self.fixed, limit)
        if self.memory is None or self._per_position is None:
            return 1
        on_device, on_host = self._per_position
        device = _ON_DEVICE * self.memory.free()
        host = min(_ON_HOST * self.memory.host(), _HOST_ROOM) / _AT_ONCE
        for n in range(limit, 1, -1):
            longest = length + max(len(prompt.ids) for prompt in prompts[:n])
            positions = n * longest
            fits = positions * on_device <= device and positions * on_host <= host
            if fits and positions <= self.positions:
                return n
        return 1

    def _attempt(self, batch: list[Encoded], length: int, trace: Tracing) -> list[Trace] | None:
        if self.memory is None:
            return trace(batch)
        self.memory.begin(anew=self._per_position is None)
        try:
            traces = trace(batch)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise _one_is_too_much(batch[0], length) from error
        else:
            if self._per_position is None:
                places = len(batch) * (length + max(len(prompt.ids) for prompt in batch))
                host = sum(traced.data.nbytes for traced in traces)
                self._per_position = self.memory.peak_bytes() / places, host / places
            return traces
        # Outside the handler, because inside it the error keeps the tensors of the failed forward alive.
        self.limit = len(batch) // 2
        self.memory.release()
        return None


def _one_is_too_much(prompt: Encoded, length: int) -> ModelError:
    return ModelError(
        f"the GPU has too little memory to trace one example of {len(prompt.ids)} tokens and "
        f"{length} after them",
        "Use shorter prompts (--traced-as passages=3), a narrower dtype (--set dtype=bfloat16), "
        "fewer --workers on a GPU, or a larger GPU.",
    )


def free_on_host() -> int:
    """Return the bytes of host memory available without swapping; 8 GB if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):  # not Linux
        return 8_000_000_000
