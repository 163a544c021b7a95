"""Decide when a worker is hung: it sends no message for too long, or works on one shard for too long.

Only the time during which the driver listens for messages is counted. Otherwise all workers would count as
hung after the machine has slept or the driver was stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UsageError

PATIENCE = 120.0  # loading a library or a model from a slow disk can block a process for a minute
SHARD_LIMIT = 6 * 3600.0
_START = 120.0  # for the first message of a new process, even if the patience is shorter


@dataclass(frozen=True)
class Limits:
    """Time limits of a worker.

    Args:
        patience (float): Longest time without a message, in seconds.
        shard (float): Longest time on one shard, in seconds.
    """

    patience: float = PATIENCE
    shard: float = SHARD_LIMIT

    def __post_init__(self) -> None:
        for name, seconds in (("patience", self.patience), ("shard_limit", self.shard)):
            if not seconds > 0:
                raise UsageError(
                    f"{name} is {seconds:g}, expected a number of seconds above 0",
                    "Give a positive number of seconds.",
                )

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats of a worker, and between two checks by the driver."""
        return min(self.patience / 6, self.shard / 6, 5.0)


class ListeningClock:
    """A clock that counts only the time during which the driver listens for messages.

    Each call of `elapsed` counts at most two heartbeats.

    Args:
        limits (Limits): Time limits, which define the heartbeat.
        clock (callable): Function that returns the time in seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._clock, self._last = 2 * limits.heartbeat, clock, clock()

    def elapsed(self) -> float:
        """Return the seconds since the last call, at most two heartbeats."""
        timestamp = self._clock()
        gap, self._last = timestamp - self._last, timestamp
        return min(gap, self._longest)


class HangTimer:
    """A timer of the time since a worker's last message, and of its time on the current shard."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._started = self._job_started = False
        self._silent = self._busy = 0.0

    def assign(self) -> None:
        """Record that the worker was sent a job."""
        self._job_started = False
        self._silent = self._busy = 0.0

    def heartbeat(self) -> None:
        """Record a message from the worker."""
        self._started, self._silent = True, 0.0

    def begin(self) -> None:
        """Record that the worker has finished loading, and start the time of its shard."""
        self.heartbeat()
        self._job_started, self._busy = True, 0.0

    def advance(self, seconds: float) -> str | None:
        """Add elapsed seconds; return the reason why the worker counts as hung, or None if it does not."""
        self._silent += seconds
        self._busy += seconds
        patience = self._limits.patience if self._started else max(self._limits.patience, _START)
        if self._silent > patience:
            return f"its worker hung: no sign of life for {patience:g} s (patience of --engine)"
        # The time for loading is limited too, but not by the shard's limit.
        limit = self._limits.shard if self._job_started else max(self._limits.shard, SHARD_LIMIT)
        if self._busy > limit:
            return f"its worker took more than {limit:g} s for it (shard_limit of --engine)"
        return None
