"""Run the jobs of a worker, in the same way for every engine.

The plan's worker is created at the first job. Every job returns the bytes of a shard, or a Failure. The
driver writes the shards. A study's worker itself writes only complete traces, if the request asks for them.
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
    """An object that creates the plan's worker at the first job, and runs jobs with this worker.

    Args:
        worker (str): Name of a WorkerFactory, as "module:function".
        request (dict): The plan's request.
        context (dict): The plan's context.
    """

    def __init__(self, worker: str, request: dict[str, Any], context: dict[str, Any]) -> None:
        self._factory, self._request, self._context = worker, request, context
        self._worker: Worker | None = None

    def do(self, job: Job, begin: Callable[[], None], tick: Tick) -> Done | Failed:
        """Run a job, and return its result or its failure.

        `begin` is called when the worker has been created. `tick` is called with the progress of the job.
        """
        try:
            if self._worker is None:
                make: WorkerFactory = resolve(self._factory)
                self._worker = make(self._request, self._context)
            begin()
            start = time.monotonic()
            output = self._worker(job.spec, limit_rate(tick))
            if not isinstance(output, Output):
                raise RunError(f"{self._factory} returned {type(output).__name__}, not an Output")
            data = encode(job.shard, job.key, output)
            return Done(job.shard, data, time.monotonic() - start)
        except Exception as error:
            return Failed(job.shard, describe_failure(error))


def limit_rate(tick: Tick) -> Tick:
    """Return a tick that passes on at most ten calls a second, because each crosses a process boundary."""
    last = float("-inf")

    def limited(completed: float, total: float) -> None:
        nonlocal last
        timestamp = time.monotonic()
        if timestamp - last >= _SECONDS_BETWEEN_TICKS:
            last = timestamp
            tick(float(completed), float(total))

    return limited


def describe_failure(error: Exception) -> Failure:
    """Convert an exception to a Failure."""
    is_floatscope = isinstance(error, FloatscopeError)
    return Failure(
        class_path=f"{type(error).__module__}:{type(error).__qualname__}",
        message=error.problem if isinstance(error, FloatscopeError) else str(error),
        remedy=error.remedy if isinstance(error, FloatscopeError) else "",
        traceback="".join(traceback.format_exception(error)),
        is_floatscope=is_floatscope,
    )


def error_of(shard: str, failure: Failure, log: str) -> FloatscopeError:
    """Return the error that ends the run after a failure; its message names the shard.

    The class of a FloatscopeError is kept, if it can be imported here; other exceptions become a RunError
    that names the file `log` with the traceback.
    """
    name = failure.class_path.partition(":")[2]
    if not failure.is_floatscope:
        return RunError(
            f"shard {shard} failed: {name}: {failure.message}",
            f"The traceback is in {log}. Shards already stored are kept: "
            "once the cause is corrected, run it again with --resume.",
        )
    error_class: type[FloatscopeError] = RunError
    try:
        resolved = resolve(failure.class_path)
        if isinstance(resolved, type) and issubclass(resolved, FloatscopeError):
            error_class = resolved
    except FloatscopeError:
        pass  # a class that exists only where the worker ran
    error = error_class.__new__(error_class)
    FloatscopeError.__init__(error, f"shard {shard}: {failure.message}", failure.remedy)
    return error
