"""Measure batches in background threads: while a batch is measured, the worker traces the next batch."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from ..engine.hardware import usable_cores

# Threads share Python's interpreter lock with the loop that launches kernels.
_MOST_THREADS = 4
T = TypeVar("T")


class Measuring(Generic[T]):
    """A pool of threads that returns results in the order in which jobs were added.

    `add` returns when all jobs of the previous batch are done, so that at most two batches are in memory:
    one is measured while the other is traced. The first error of a job is raised by `add` or `finish`.
    """

    def __init__(self, threads: int = 1) -> None:
        self.added, self._results, self._waiting = 0, list[T](), list[Future[T]]()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="measuring")

    def __enter__(self) -> "Measuring[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, jobs: Iterable[Callable[[], T]]) -> None:
        """Start each job of a batch as soon as `jobs` yields it, then wait for the previous batch."""
        futures = []
        for job in jobs:
            futures.append(self._pool.submit(job))
            self.added += 1
        self._collect()
        self._waiting = futures

    def finish(self) -> list[T]:
        """Wait for the last batch, and return the results of all batches."""
        self._collect()
        return self._results

    def _collect(self) -> None:
        self._results += [job.result() for job in self._waiting]
        self._waiting = []


def threads_of(workers: int) -> int:
    """Return the number of measuring threads of each worker: its share of the cores, from 1 to 4.

    If OMP_NUM_THREADS is set, the number of threads is at most OMP_NUM_THREADS.
    """
    cores = usable_cores()
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    share = cores // max(workers, 1)
    return max(1, min(share, _MOST_THREADS, int(allowed) if allowed.isdigit() else share))
