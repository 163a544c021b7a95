"""Define the jobs of a run, the queue that distributes them, and the reports of engines.

An engine takes jobs from the queue and yields reports. The driver writes files and log events from the
reports. The queue decides whether a lost shard is retried.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .plan import Plan

RETRIES = 3  # how often a shard whose worker died is tried again


@dataclass(frozen=True)
class Job:
    """A shard as sent to a worker, with the key to store in the shard's file."""

    shard: str
    spec: dict[str, Any]
    key: str


@dataclass(frozen=True)
class Failure:
    """An exception converted to text, so that it can be sent between processes."""

    class_path: str  # "module:class"
    message: str
    remedy: str
    traceback: str
    is_floatscope: bool  # a FloatscopeError: something that a user can act on


@dataclass(frozen=True)
class Done:
    """A report of a computed shard: the bytes of its file, and the computing time in seconds."""

    shard: str
    data: bytes
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A report of a shard whose worker raised an exception."""

    shard: str
    failure: Failure


@dataclass(frozen=True)
class Lost:
    """A report of a shard whose worker died or hung; the shard is retried unless `is_last`."""

    shard: str
    reason: str
    times: int

    @property
    def is_last(self) -> bool:
        """Whether the shard was lost too often to be retried."""
        return self.times > RETRIES


@dataclass(frozen=True)
class Waiting:
    """A report that no worker has worked for a while, with the reason."""

    reason: str


Report = Done | Failed | Lost | Waiting


@runtime_checkable
class ProgressListener(Protocol):
    """An object that an engine calls with the progress within each shard, between its reports."""

    def begin(self, shard: str) -> None:
        """Record the start of work on a shard."""

    def tick(self, shard: str, completed: float, total: float) -> None:
        """Record the progress of a shard: `completed` of `total` units."""


class JobQueue:
    """A queue of jobs in the plan's order; a lost job is put back at the front."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)
        self._losses: Counter[str] = Counter()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._jobs)

    def take(self) -> Job | None:
        """Remove the next job from the queue and return it; None if the queue is empty."""
        return self._jobs.popleft() if self._jobs else None

    def record_loss(self, job: Job, reason: str) -> Lost:
        """Put a lost job back, unless it was lost too often or the queue was stopped; return the report."""
        self._losses[job.shard] += 1
        lost = Lost(job.shard, reason, self._losses[job.shard])
        if not lost.is_last and not self._stopped:
            self._jobs.appendleft(job)
        return lost

    def stop(self) -> None:
        """Remove all jobs from the queue; jobs in progress may finish."""
        self._stopped = True
        self._jobs.clear()


Reports = Generator[Report, None, None]
Engine = Callable[[Plan, JobQueue, ProgressListener], Reports]
