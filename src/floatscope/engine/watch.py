"""When a worker counts as hung: it is silent for too long, or keeps one shard for too long.

Only time in which the driver itself listened counts: after a machine has slept, or a driver was stopped,
all workers seem silent at once, and none of them is hung. Nothing is ended here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UsageError

PATIENCE = 120.0  # loading a library or a model from a slow disk may hold a process for a minute
SHARD_LIMIT = 6 * 3600.0
_START = 120.0  # what a new process is given to be heard from at all, however short the patience


@dataclass(frozen=True)
class Limits:
    """In seconds: of a worker's silence, and of its time with one shard."""

    patience: float = PATIENCE
    shard: float = SHARD_LIMIT

    def __post_init__(self) -> None:
        for name, value in (("patience", self.patience), ("shard_limit", self.shard)):
            if not value > 0:
                raise UsageError(f"{name} = {value:g}", "Give it some seconds.")

    @property
    def beat(self) -> float:
        """Seconds between two signs of life, and between two times they are looked for."""
        return min(self.patience / 6, self.shard / 6, 5.0)


class Awake:
    """Seconds in which the driver listened. It does so once per beat: a longer gap was none of it."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._clock, self._last = 2 * limits.beat, clock, clock()

    def passed(self) -> float:
        now = self._clock()
        gap, self._last = now - self._last, now
        return min(gap, self._longest)


class Watch:
    """One worker's silence, and its time with the shard it has."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known = self._begun = False
        self._silent = self._busy = 0.0

    def given(self) -> None:
        self._begun = False
        self._silent = self._busy = 0.0

    def heard(self) -> None:
        self._known, self._silent = True, 0.0

    def began(self) -> None:
        """Loading what it needs is over: the shard's own time starts."""
        self.heard()
        self._begun, self._busy = True, 0.0

    def passed(self, seconds: float) -> str | None:
        """So much more time; why the worker counts as hung, if it does."""
        self._silent += seconds
        self._busy += seconds
        patience = self._limits.patience if self._known else max(self._limits.patience, _START)
        if self._silent > patience:
            return f"its worker hung: no sign of life for {patience:g} s (patience of --engine)"
        # Loading a model is not the shard's time, but must end too.
        limit = self._limits.shard if self._begun else max(self._limits.shard, SHARD_LIMIT)
        if self._busy > limit:
            return f"its worker took more than {limit:g} s for it (shard_limit of --engine)"
        return None
