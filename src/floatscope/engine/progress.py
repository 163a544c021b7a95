"""Compute the progress of a run, its rate and the remaining time, for display by the caller.

The clock begins when work on the first shard begins, after the model is loaded. Shards that are stored
already do not count in the rate.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class RunProgress(NamedTuple):
    """The progress of a run, as passed to a progress callback."""

    completed: int  # shards stored, including those of earlier runs
    total: int
    fractions: Mapping[str, float]  # completed share of each shard in flight
    rate: float | None  # shards a second, in this run; None before anything is known
    seconds_left: float | None


class Meter:
    """A counter of completed shards, and of completed fractions of shards in flight."""

    def __init__(
        self, total: int, already: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.already, self.fresh = total, already, 0
        self._fractions: dict[str, float] = {}
        self._clock = clock
        self._start: float | None = None

    def begin(self, shard: str) -> None:
        """Record that work on a shard starts; the first shard starts the clock."""
        if self._start is None:
            self._start = self._clock()
        self._fractions[shard] = 0.0

    def tick(self, shard: str, completed: float, total: float) -> None:
        """Record that a shard has completed `completed` of `total` units."""
        if shard in self._fractions and total > 0:
            self._fractions[shard] = min(max(completed / total, 0.0), 1.0)

    def lose(self, shard: str) -> None:
        """Discard the progress of a shard whose worker died."""
        self._fractions.pop(shard, None)

    def finish(self, shard: str, seconds: float = 0.0) -> None:
        """Record that a shard is finished; if the clock has not started, it starts `seconds` ago."""
        if self._start is None:
            self._start = self._clock() - seconds
        self._fractions.pop(shard, None)
        self.fresh += 1

    def state(self) -> RunProgress:
        """Return the progress, rate and remaining time at this moment."""
        completed = self.already + self.fresh
        worked = self.fresh + sum(self._fractions.values())
        passed = 0.0 if self._start is None else self._clock() - self._start
        rate = worked / passed if worked and passed > 0 else None
        seconds_left = 0.0 if completed == self.total else None
        if rate is not None:
            seconds_left = max(self.total - self.already - worked, 0.0) / rate
        return RunProgress(completed, self.total, dict(self._fractions), rate, seconds_left)
