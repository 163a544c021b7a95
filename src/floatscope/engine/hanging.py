"""When a worker counts as hung: it is silent for too long, or keeps one shard for too long.

Only time in which the driver listened counts: after a machine has slept, or a driver was stopped, all workers
seem silent at once, and none of them is hung.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UsageError

PATIENCE = 120.0  # loading a library or a model from a slow disk may hold a process for a minute
SHARD_LIMIT = 6 * 3600.0
_START = 120.0  # for the first message of a new process, however short the patience


@dataclass(frozen=True)
class Limits:
    """How long a worker may be silent, and how long it may take for one shard.

    Args:
        patience (float, seconds): without a message.
        shard (float, seconds): with one shard.
    """

    patience: float = PATIENCE
    shard: float = SHARD_LIMIT

    def __post_init__(self) -> None:
        for name, seconds in (("patience", self.patience), ("shard_limit", self.shard)):
            if not seconds > 0:
                raise UsageError(
                    f"{name} is {seconds:g}, expected a number of seconds above 0",
                    "Give it some seconds.",
                )

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats, and between two times the driver looks for them."""
        return min(self.patience / 6, self.shard / 6, 5.0)


class ListeningClock:
    """Time in which the driver listened. It listens once per heartbeat: a longer gap counts as two.

    Args:
        limits (Limits): its heartbeat.
        clock (callable): returns seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._clock, self._last = 2 * limits.heartbeat, clock, clock()

    def elapsed(self) -> float:
        """Return the seconds since the last call in which the driver listened."""
        now = self._clock()
        gap, self._last = now - self._last, now
        return min(gap, self._longest)


class HangTimer:
    """One worker's silence, and its time with the shard that it has."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._started = self._begun = False
        self._silent = self._busy = 0.0

    def assign(self) -> None:
        """Note that the worker was sent a job."""
        self._begun = False
        self._silent = self._busy = 0.0

    def heartbeat(self) -> None:
        """Note that the worker has sent a message."""
        self._started, self._silent = True, 0.0

    def begin(self) -> None:
        """Note that the worker has loaded what it needs: the shard's time starts."""
        self.heartbeat()
        self._begun, self._busy = True, 0.0

    def advance(self, seconds: float) -> str | None:
        """Add time; return why the worker counts as hung, or None."""
        self._silent += seconds
        self._busy += seconds
        patience = self._limits.patience if self._started else max(self._limits.patience, _START)
        if self._silent > patience:
            return f"its worker hung: no sign of life for {patience:g} s (patience of --engine)"
        # The time for loading is limited too, but not by the shard's limit.
        limit = self._limits.shard if self._begun else max(self._limits.shard, SHARD_LIMIT)
        if self._busy > limit:
            return f"its worker took more than {limit:g} s for it (shard_limit of --engine)"
        return None
