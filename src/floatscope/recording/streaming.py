"""A prompt's steps on their way into a store: as many in memory as are still under way.

A step's values arrive from the device one or two steps later; until then it has memory of its own. What has
arrived is written by a thread, in order, and let go.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ..trace.unfinished import CANVAS, Unfinished

_BEHIND = 2  # steps that may wait for the disk before the decoding does


@dataclass(eq=False)
class Stream:
    """The steps of one prompt. `begin` one, take its `room`, and `write` those that have arrived."""

    store: Unfinished
    dims: Mapping[str, Sequence[str]]  # of a step's array, by name
    names: set[str] = field(default_factory=set)  # of all statistics so far
    _steps: deque[tuple[int, dict[str, np.ndarray]]] = field(default_factory=deque)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _jobs: deque[Future[None]] = field(default_factory=deque)

    def begin(self, step: int) -> None:
        self._steps.append((step, {}))

    def room(self, name: str, shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
        """Memory for a statistic of the step that was begun."""
        if name != CANVAS:
            self.names.add(name)
        array = self._steps[-1][1][name] = np.empty(shape, kind)
        return array

    def write(self, but: int = 0) -> None:
        """All steps but the last few have arrived."""
        while len(self._steps) > but:
            step, arrays = self._steps.popleft()
            parts = {name: (self.dims.get(name, ("key",)), one) for name, one in arrays.items()}
            self._jobs.append(self._thread.submit(self.store.write, step, parts))
        while len(self._jobs) > _BEHIND:
            self._jobs.popleft().result()

    def settle(self) -> None:
        """What has arrived is written, or raises what went wrong."""
        self.write()
        while self._jobs:
            self._jobs.popleft().result()
        self._thread.shutdown()
