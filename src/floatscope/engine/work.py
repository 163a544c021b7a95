"""What a worker process does with a job, whichever engine started it.

It makes the plan's worker once, when the first job comes, and turns every job into the bytes of a
shard or into a Failure. It writes no file: shards are the driver's affair alone. (A study's worker that was
asked for whole traces writes these beside them.)
"""

import time
import traceback
from collections.abc import Callable
from typing import Any

from ..errors import FloatscopeError, RunError
from .jobs import Done, Failed, Failure, Job
from .plan import Output, Tick, Worker, WorkerFactory, resolve
from .shards import encode

_SECONDS_BETWEEN_TICKS = 0.1


class WorkerHost:
    """The one worker object of a process."""

    def __init__(self, worker: str, request: dict[str, Any], context: dict[str, Any]) -> None:
        self._named, self._request, self._context = worker, request, context
        self._worker: Worker | None = None

    def do(self, job: Job, begin: Callable[[], None], tick: Tick) -> Done | Failed:
        try:
            if self._worker is None:
                make: WorkerFactory = resolve(self._named)
                self._worker = make(self._request, self._context)
            begin()
            start = time.monotonic()
            output = self._worker(job.spec, spaced(tick))
            if not isinstance(output, Output):
                raise RunError(f"{self._named} returned {type(output).__name__}, not an Output")
            data = encode(job.shard, job.key, output)
            return Done(job.shard, data, time.monotonic() - start)
        except Exception as error:
            return Failed(job.shard, described(error))


def spaced(tick: Tick) -> Tick:
    """Pass on at most ten ticks a second: each crosses a process border."""
    last = float("-inf")

    def passed(done: float, of: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_TICKS:
            last = now
            tick(float(done), float(of))

    return passed


def described(error: Exception) -> Failure:
    ours = isinstance(error, FloatscopeError)
    return Failure(
        kind=f"{type(error).__module__}:{type(error).__qualname__}",
        what=error.what if isinstance(error, FloatscopeError) else str(error),
        remedy=error.remedy if isinstance(error, FloatscopeError) else "",
        traceback="".join(traceback.format_exception(error)),
        of_ours=ours,
    )


def revived(shard: str, failure: Failure, log: str) -> FloatscopeError:
    """The error to end the run with: it names the shard, and keeps its class if it is one of ours."""
    kind = failure.kind.partition(":")[2]
    if not failure.of_ours:
        return RunError(
            f"shard {shard} failed: {kind}: {failure.what}",
            f"The traceback is in {log}. Shards already stored are kept: "
            "once it is mended, run it again with --resume.",
        )
    known: type[FloatscopeError] = RunError
    try:
        kind_of_error = resolve(failure.kind)
        if isinstance(kind_of_error, type) and issubclass(kind_of_error, FloatscopeError):
            known = kind_of_error
    except FloatscopeError:
        pass  # a class that exists only where the worker ran
    error = known.__new__(known)
    FloatscopeError.__init__(error, f"shard {shard}: {failure.what}", failure.remedy)
    return error
