"""How far a run is, how fast it goes and how long it will take. It draws nothing.

The rate counts only what was done since the clock started: shards found finished cost no time, and
loading a model is not work on a shard. The clock starts with the first shard begun.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class RunProgress(NamedTuple):
    """What a progress callback is given."""

    done: int  # shards stored, those of earlier runs among them
    total: int
    fractions: Mapping[str, float]  # of the shards in flight: how far each has come
    rate: float | None  # shards a second, in this run; None before anything is known
    seconds_left: float | None


class Meter:
    """Counts shards and fractions of shards."""

    def __init__(
        self, total: int, already: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.already, self.fresh = total, already, 0
        self._fractions: dict[str, float] = {}
        self._clock = clock
        self._start: float | None = None

    def begin(self, shard: str) -> None:
        if self._start is None:
            self._start = self._clock()
        self._fractions[shard] = 0.0

    def tick(self, shard: str, done: float, of: float) -> None:
        if shard in self._fractions and of > 0:
            self._fractions[shard] = min(max(done / of, 0.0), 1.0)

    def lose(self, shard: str) -> None:
        """Its worker died: what was done of it is gone."""
        self._fractions.pop(shard, None)

    def finish(self, shard: str, seconds: float = 0.0) -> None:
        """It took so long: where no beginning was seen, that is when the clock started."""
        if self._start is None:
            self._start = self._clock() - seconds
        self._fractions.pop(shard, None)
        self.fresh += 1

    def state(self) -> RunProgress:
        done = self.already + self.fresh
        worked = self.fresh + sum(self._fractions.values())
        passed = 0.0 if self._start is None else self._clock() - self._start
        rate = worked / passed if worked and passed > 0 else None
        left = 0.0 if done == self.total else None
        if rate is not None:
            left = max(self.total - self.already - worked, 0.0) / rate
        return RunProgress(done, self.total, dict(self._fractions), rate, left)
