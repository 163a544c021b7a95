"""Consumers that keep a prompt's step records, in memory or in a store on disk."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..statistics import STATISTICS
from ..trace.unfinished import CANVAS, Unfinished
from .step_record import Shape, StepRecord
from .transfer import Outbox, Slot

_BEHIND = 2  # steps that may wait for the disk before the decoding does


@dataclass(eq=False)
class KeptSteps:
    """Steps in memory: one array per statistic, with room for every step.

    The numbers of steps and positions are usually known before the first step, so a long trace is in
    memory only once, and pages that no step reaches are never touched. If more steps come, the arrays
    grow.
    """

    outbox: Outbox
    room: int  # steps that may come
    empty: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty
    steps: list[int] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _slots: dict[str, Slot] = field(default_factory=dict)  # the arrays, as tensors

    @property
    def names(self) -> Iterable[str]:
        """Names of the recorded arrays."""
        return self.arrays.keys()

    def step(self, record: StepRecord) -> None:
        """Store a step."""
        self.steps.append(record.step)
        for name, values in record.values.items():
            self.outbox.post(values, self._slot(name, values))

    def finish(self) -> None:
        """Release the references to the arrays."""
        self._slots.clear()  # which would hold what is taken out of `arrays`

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
            self.outbox.flush()  # into the array that is about to go
            more = 2 * shape[0] if shape[0] > len(before) else len(before)
            array = self.empty((more, *shape[1:]), dtype)
            array.fill(np.nan if dtype.kind == "f" else -1)
            array[tuple(map(slice, before.shape))] = before
        tensor = torch.from_numpy(array)
        pinned = torch.cuda.is_available() and tensor.is_pinned()
        self.arrays[name], self._slots[name] = array, Slot(tensor, pinned)


@dataclass(eq=False)
class StoredSteps:
    """Steps that are written to a store; only those in transit are in memory.

    A step's values arrive from the device one or two steps later; until then they have their own memory.
    A thread writes arrived steps in order and releases them.
    """

    outbox: Outbox
    store: Unfinished
    shape: Shape
    steps: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of all statistics so far
    _waiting: deque[tuple[int, dict[str, np.ndarray]]] = field(default_factory=deque)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _jobs: deque[Future[None]] = field(default_factory=deque)

    def step(self, record: StepRecord) -> None:
        """Start the transfer of a step, and write earlier ones."""
        self.outbox.arrived()
        self._write(but=1)  # all steps but the last have arrived
        self.steps.append(record.step)
        self.names.update(record.values)
        arrays: dict[str, np.ndarray] = {}
        self._waiting.append((record.step, arrays))
        # For whoever opens a store that was not finished.
        for name, values in {**record.values, CANVAS: self._whole_canvas(record)}.items():
            arrays[name] = self._room(values)
            self.outbox.post(values, Slot(torch.from_numpy(arrays[name])))

    def _room(self, values: Tensor) -> np.ndarray:
        """Allocate an array of the latest step."""
        return np.empty(tuple(values.shape), _numpy_type(values.dtype))

    def finish(self) -> None:
        """Wait until everything is written, and raise what went wrong."""
        self._write()
        while self._jobs:
            self._jobs.popleft().result()
        self._thread.shutdown()

    def _write(self, but: int = 0) -> None:
        dims = {name: array.dims for name, array in STATISTICS.arrays().items()}
        while len(self._waiting) > but:
            step, arrays = self._waiting.popleft()
            parts = {name: (dims.get(name, ("key",)), one) for name, one in arrays.items()}
            self._jobs.append(self._thread.submit(self.store.write, step, parts))
        while len(self._jobs) > _BEHIND:
            self._jobs.popleft().result()

    def _whole_canvas(self, record: StepRecord) -> Tensor:
        """Return the canvas, with −1 at positions that do not exist yet."""
        missing = self.shape.size - len(record.canvas)
        return torch.nn.functional.pad(record.canvas, (0, missing), value=-1)


@dataclass(eq=False)
class PromptRecord:
    """Everything recorded for one prompt: its steps, and the rows that predicted revealed positions."""

    shape: Shape
    kept: KeptSteps | StoredSteps
    events: list[tuple[int, int, int]] = field(default_factory=list)  # step, position, token
    event_arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    stale: list[np.ndarray] = field(default_factory=list)  # by kept step: keys that are older


def _numpy_type(dtype: torch.dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("torch."))
