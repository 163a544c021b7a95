"""Store the records of a prompt: its steps, in memory or on disk, and the rows of revealed tokens."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from ..attention import Rows
from ..models.placing import sent
from ..statistics import STATISTICS
from ..trace.unfinished import CANVAS, Unfinished
from .step_record import Shape, StepRecord
from .transfer import HostCopier, Part, Slot

_BEHIND = 2  # steps that may wait for the disk before decoding waits
_MOST_ROWS = 64 << 20  # bytes of revealed rows kept on the device


@dataclass(eq=False)
class KeptSteps:
    """Steps of a prompt in memory: one array per statistic, with room for every step.

    Building the trace copies no array. Memory pages for unused steps are never written. If a decoding has
    more steps than there is room for, the arrays grow.
    """

    copier: HostCopier
    room: int  # expected number of steps
    empty: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty
    steps: list[int] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _slots: dict[str, Slot] = field(default_factory=dict)  # the arrays, as tensors

    @property
    def names(self) -> Iterable[str]:
        """Names of the recorded arrays."""
        return self.arrays.keys()

    def step(self, record: StepRecord) -> None:
        """Start the copy of a step's values into the arrays."""
        self.steps.append(record.step)
        for name, values in record.values.items():
            self.copier.post(values, self._slot(name, values))

    def finish(self) -> None:
        """Drop the slots, which would keep removed arrays in memory."""
        self._slots.clear()  # would keep removed arrays in memory

    def _slot(self, name: str, values: Tensor) -> Slot:
        """Return the destination of a statistic's values at the current step."""
        array, shape = self.arrays.get(name), (len(self.steps), *values.shape)
        if array is None or any(has < needs for has, needs in zip(array.shape, shape, strict=True)):
            self._make_room(name, shape, _numpy_type(values.dtype))
        slot = self._slots[name]
        return Slot(slot.tensor[len(self.steps) - 1], slot.pinned)

    def _make_room(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        before = self.arrays.get(name)
        if before is None:
            array = self.empty((max(self.room, shape[0]), *shape[1:]), dtype)
        else:
            self.copier.flush()  # copies to the array to be replaced
            length = 2 * shape[0] if shape[0] > len(before) else len(before)
            array = self.empty((length, *shape[1:]), dtype)
            array.fill(np.nan if dtype.kind == "f" else -1)
            array[tuple(map(slice, before.shape))] = before
        tensor = torch.from_numpy(array)
        pinned = torch.cuda.is_available() and tensor.is_pinned()
        self.arrays[name], self._slots[name] = array, Slot(tensor, pinned)


@dataclass(eq=False)
class StoredSteps:
    """Steps of a prompt on disk, which a thread writes to a store in order.

    The values of a step arrive from the device one or two steps later, so each step has its own host memory.
    """

    copier: HostCopier
    store: Unfinished
    shape: Shape
    steps: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of all statistics so far
    _waiting: deque[tuple[int, dict[str, np.ndarray]]] = field(default_factory=deque)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _jobs: deque[Future[None]] = field(default_factory=deque)

    def step(self, record: StepRecord) -> None:
        """Start the transfer of a step, and write the steps that have arrived."""
        self.copier.wait_sent()
        self._write(but=1)  # all steps but the last have arrived
        self.steps.append(record.step)
        self.names.update(record.values)
        arrays: dict[str, np.ndarray] = {}
        self._waiting.append((record.step, arrays))
        # The canvas is stored too, for readers of unfinished stores.
        for name, values in {**record.values, CANVAS: self._whole_canvas(record)}.items():
            arrays[name] = self._room(values)
            self.copier.post(values, Slot(torch.from_numpy(arrays[name])))

    def _room(self, values: Tensor) -> np.ndarray:
        return np.empty(tuple(values.shape), _numpy_type(values.dtype))

    def finish(self) -> None:
        """Wait until all steps are written, and raise the first error of the thread."""
        self._write()
        while self._jobs:
            self._jobs.popleft().result()
        self._thread.shutdown()

    def _write(self, but: int = 0) -> None:
        dims = {name: array.dims for name, array in STATISTICS.arrays().items()}
        while len(self._waiting) > but:
            step, arrays = self._waiting.popleft()
            parts = {name: (dims.get(name, ("key",)), array) for name, array in arrays.items()}
            self._jobs.append(self._thread.submit(self.store.write, step, parts))
        while len(self._jobs) > _BEHIND:
            self._jobs.popleft().result()

    def _whole_canvas(self, record: StepRecord) -> Tensor:
        """Return the canvas, with −1 at positions that do not exist yet."""
        missing = self.shape.size - len(record.canvas)
        return torch.nn.functional.pad(record.canvas, (0, missing), value=-1)


@dataclass(eq=False)
class PromptRecord:
    """Records of one prompt: its steps, and the rows that predicted revealed positions."""

    shape: Shape
    step_store: KeptSteps | StoredSteps
    events: list[tuple[int, int, int]] = field(default_factory=list)  # step, position, token
    event_arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    stale: list[np.ndarray] = field(default_factory=list)  # by kept step: keys not recomputed


@dataclass(eq=False)
class RevealedRows:
    """Rows that predicted revealed positions, collected on the device and then sent to the host by prompt."""

    recorded: Sequence[PromptRecord]
    dtype: np.dtype
    copier: HostCopier
    _batches: list[Rows] = field(default_factory=list)
    _prompts: list[int] = field(default_factory=list)  # prompt of each row
    # number of padding columns of each row's prompt
    _padding: list[int] = field(default_factory=list)
    _bytes: int = 0

    def add(self, rows: Rows, prompts: Sequence[int], padding: Sequence[int]) -> None:
        self._batches.append(rows)
        self._prompts += prompts
        self._padding += padding
        self._bytes += rows.key.nbytes + rows.weight.nbytes + rows.flow.nbytes
        if self._bytes > _MOST_ROWS:
            self.send()

    def send(self) -> None:
        prompts, padding = np.array(self._prompts, int), np.array(self._padding, int)
        batches = self._batches
        self._batches, self._prompts, self._padding, self._bytes = [], [], [], 0
        if not batches:
            return
        order = np.argsort(prompts, kind="stable")
        parts_of = ([rows.key, rows.weight, rows.flow] for rows in batches)
        key, weight, flow = (_join_sorted(parts, order) for parts in zip(*parts_of, strict=True))
        if padding.any():  # count keys from the prompt's first column
            before = sent(torch.from_numpy(padding[order]), key.device)[:, None, None, None]
            key = torch.where(key >= 0, key - before, key)
        arrays = (("row_key", key, np.dtype(np.int32)), ("row_weight", weight, self.dtype))
        for name, tensor, dtype in (*arrays, ("row_flow", flow, self.dtype)):
            parts: list[Part] = []
            for b in np.unique(prompts):
                first, stop = np.searchsorted(prompts[order], [b, b + 1])
                regions = list(self.recorded[b].shape.regions)
                last = regions if name == "row_flow" else slice(None)
                width = len(regions) if name == "row_flow" else tensor.shape[3]
                array = np.empty((stop - first, *tensor.shape[1:3], width), dtype)
                self.recorded[b].event_arrays.setdefault(name, []).append(array)
                parts.append((itemgetter((slice(first, stop), ..., last)), array))
            self.copier.post_parts(tensor, parts)


def _join_sorted(parts: tuple[Tensor, ...], order: np.ndarray) -> Tensor:
    joined = torch.cat(parts)  # (n, l, h, _)
    if (np.diff(order) == 1).all():
        return joined
    return joined[sent(torch.from_numpy(order), joined.device)]


def _numpy_type(dtype: torch.dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("torch."))
