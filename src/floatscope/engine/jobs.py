"""What is still to be done, and what engines report. An engine takes jobs and yields reports.

The driver decides what a report means; the queue decides how often a shard may be lost.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .plan import Plan

REDOS = 3  # how often a shard whose worker died is tried again


@dataclass(frozen=True)
class Job:
    """A shard as a worker gets it, with the key its file must carry."""

    shard: str
    spec: dict[str, Any]
    key: str


@dataclass(frozen=True)
class Failure:
    """An exception as text, so that any process can send it to any other."""

    kind: str  # "module:class"
    what: str
    remedy: str
    traceback: str
    of_ours: bool  # a FloatscopeError: something a user can act on


@dataclass(frozen=True)
class Done:
    shard: str
    data: bytes
    seconds: float


@dataclass(frozen=True)
class Failed:
    shard: str
    failure: Failure


@dataclass(frozen=True)
class Lost:
    """The worker died; the shard is tried again unless this is the last time."""

    shard: str
    why: str
    times: int

    @property
    def last(self) -> bool:
        return self.times > REDOS


@dataclass(frozen=True)
class Waiting:
    """Nothing goes on, and why."""

    why: str


Report = Done | Failed | Lost | Waiting


@runtime_checkable
class Listener(Protocol):
    """Told of progress inside shards, between reports."""

    def begin(self, shard: str) -> None: ...

    def tick(self, shard: str, done: float, of: float) -> None: ...


class Queue:
    """Jobs in the plan's order; a lost one goes to the front."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)
        self._losses: Counter[str] = Counter()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._jobs)

    def take(self) -> Job | None:
        return self._jobs.popleft() if self._jobs else None

    def lose(self, job: Job, why: str) -> Lost:
        self._losses[job.shard] += 1
        lost = Lost(job.shard, why, self._losses[job.shard])
        if not lost.last and not self._stopped:
            self._jobs.appendleft(job)
        return lost

    def stop(self) -> None:
        """Give out no more; what is in flight may land."""
        self._stopped = True
        self._jobs.clear()


Reports = Generator[Report, None, None]
Engine = Callable[[Plan, Queue, Listener], Reports]
