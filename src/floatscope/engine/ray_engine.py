"""Run jobs with Ray: one actor per worker, on this machine or on a cluster (the Ray engine).

Actors send the bytes of shards to the driver, and the driver writes them. No shared disk is needed, and a
replaced actor that wakes up later cannot write files. An actor that dies or no longer answers is replaced,
and its shard is computed again. If the cluster is lost, the run ends. Ray is imported when this engine is
used.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import RunError
from .hanging import HangTimer, Limits, ListeningClock
from .jobs import Done, Failed, Job, JobQueue, ProgressListener, Report, Reports, Waiting
from .plan import Plan
from .ray_cluster import Cluster, check_address, cluster_error, import_ray, run_in_thread
from .work import WorkerHost

_POLL_SECONDS = 0.5
_IDLE_SECONDS = 30.0  # time without a working worker, after which a Waiting is reported
_FAILED_STARTS = 3  # actors that die one after the other before they are ready
_BUFFERED_BYTES = 2**28  # results waiting to be written while workers get their next job


class RayWorkers:
    """An engine of Ray actors, each with its own CPUs and GPUs.

    Ray shows an actor only its own GPUs (CUDA_VISIBLE_DEVICES), so that "cuda" is a different GPU in each
    actor.

    Args:
        workers (int): Number of actors.
        address (str): Address of a cluster; None (by default) starts Ray on this machine.
        gpus (float): GPUs of each actor; 0 by default; None means one if the cluster has GPUs, else none.
        cpus (float): CPUs of each actor, as the cluster counts them; 1 by default.
        limits (Limits): Time limits after which an actor counts as hung.
    """

    def __init__(
        self,
        workers: int,
        address: str | None = None,
        gpus: float | None = 0,
        cpus: float = 1,
        limits: Limits = Limits(),  # noqa: B008 (it cannot change)
    ) -> None:
        self.workers, self.address, self.gpus, self.cpus = workers, address, gpus, cpus
        self.limits = limits

    def __call__(self, plan: Plan, queue: JobQueue, listener: ProgressListener) -> Reports:
        with TemporaryDirectory(prefix="floatscope-ray-", ignore_cleanup_errors=True) as empty:
            yield from self._connected(empty, plan, queue, listener)

    def _connected(
        self, empty: str, plan: Plan, queue: JobQueue, listener: ProgressListener
    ) -> Reports:
        ray = import_ray()
        starts_ray = not ray.is_initialized()
        if starts_ray:
            self._connect(ray, empty)
        actors: list[_Actor] = []
        try:
            yield from self._run(ray, plan, queue, listener, actors)
        except ConnectionError as error:
            raise cluster_error(str(error)) from error
        finally:
            run_in_thread(ray, [actor.end for actor in actors] + [ray.shutdown] * starts_ray)

    def _connect(self, ray: Any, empty: str) -> None:
        """Start Ray on this machine, or join a cluster.

        Ray puts the directory in which it is started first on its workers' module search path. It is
        therefore started in `empty`, a directory without files.
        """
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if self.address:
            options["address"] = self.address
        else:
            # `--workers` decides, even if the machine has fewer CPUs.
            count = max(int(self.workers * self.cpus), os.cpu_count() or 1)
            options |= {"address": "local", "num_cpus": count, "include_dashboard": False}
        try:
            if self.address:
                check_address(self.address)
            with chdir(empty):
                ray.init(**options)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise RunError(
                f"no Ray cluster at {self.address or 'this machine'}: {error}",
                "Check the address (`ray status` on the head node) and that RAY_AUTH_MODE and the "
                "token are the cluster's, or leave the address out for a local cluster.",
            ) from error

    def _run(
        self,
        ray: Any,
        plan: Plan,
        queue: JobQueue,
        listener: ProgressListener,
        actors: list["_Actor"],
    ) -> Iterator[Report]:
        gpus = self.gpus
        if gpus is None:
            gpus = 1 if ray.cluster_resources().get("GPU") else 0
        options = {"num_cpus": self.cpus, "num_gpus": gpus, "max_concurrency": 2}
        remote = ray.remote(**options)(_Remote)
        # On this machine a worker has the driver's import path and folder, as a spawned process has.
        path, folder = ([], "") if self.address else (list(filter(None, sys.path)), os.getcwd())
        failed_starts, last_active = 0, time.monotonic()
        clock, cluster = ListeningClock(self.limits), Cluster(ray)
        while True:
            cluster.check()
            idle = sum(actor.job is None for actor in actors)
            while len(actors) < self.workers and len(queue) > idle:
                actors.append(_Actor(ray, remote, plan, path, folder, self.limits))
                idle += 1
            for actor in actors:
                if actor.ready and actor.job is None and (job := queue.take()):
                    actor.assign(job)
            if not len(queue) and not any(actor.job for actor in actors):
                return
            for actor in actors:
                actor.poll()
            available = _wait(ray, actors)
            elapsed = clock.elapsed()
            reports: list[Report] = []
            for actor in list(actors):
                for report in actor.receive(available, queue, listener, elapsed):
                    reports.append(report)
                    # The actor gets its next job before the driver writes to disk. After a failure
                    # the driver decides first.
                    succeeded = all(isinstance(report, Done) for report in reports)
                    if succeeded and (job := queue.take()):
                        actor.assign(job)
                    last_active = time.monotonic()
                waiting = sum(len(report.data) for report in reports if isinstance(report, Done))
                if waiting > _BUFFERED_BYTES:
                    yield from reports
                    reports = []
                if actor.dead:
                    actors.remove(actor)
                    failed_starts = 0 if actor.ready else failed_starts + 1
                    if failed_starts > _FAILED_STARTS:
                        yield from reports
                        raise RunError(
                            f"Ray workers stop before they are ready: {actor.end_reason[-500:]}",
                            "Install this version of Floatscope on every machine.",
                        )
                elif actor.job:
                    last_active = time.monotonic()
            yield from reports
            if time.monotonic() - last_active > _IDLE_SECONDS:
                last_active = time.monotonic()
                yield Waiting(
                    f"no worker has started: each needs {self.cpus:g} CPUs and {gpus:g} GPUs; "
                    f"{cluster.free()} are free"
                )


class _Remote:
    """The object in an actor's process; a second thread answers `progress` while a job runs."""

    def __init__(
        self, task: tuple[str, dict[str, Any], dict[str, Any]], path: list[str], folder: str
    ) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path)
        if folder:
            os.chdir(folder)
        self._host = WorkerHost(*task)
        self._progress: tuple[str, float, float] | None = None

    def ready(self) -> bool:
        return True

    def do(self, job: Job) -> Done | Failed:
        def tick(completed: float = 0.0, total: float = 1.0) -> None:
            self._progress = (job.shard, completed, total)

        return self._host.do(job, tick, tick)

    def progress(self) -> tuple[str, float, float] | None:
        """Return the current shard's id, its completed units and its total; None before the first job."""
        return self._progress


class _Actor:
    """The driver's side of an actor: at most one job and one progress query at a time."""

    def __init__(
        self, ray: Any, remote: Any, plan: Plan, path: list[str], folder: str, limits: Limits
    ) -> None:
        task = plan.worker, plan.request, plan.context
        self._ray, self._handle = ray, remote.remote(task, path, folder)
        self._start: Any = self._handle.ready.remote()  # Ray's references to answers
        self._result: Any = None
        self._progress: Any = None
        self._polled_at = 0.0
        self._job_started = False
        self._timer = HangTimer(limits)
        self.job: Job | None = None
        self.ready = self.dead = False
        self.end_reason = ""

    def awaited(self) -> list[Any]:
        """Return the Ray references that the driver waits for: to the start and to the result."""
        return [ref for ref in (self._start, self._result) if ref is not None]

    def unawaited(self) -> list[Any]:
        """Return the Ray references that are read without waiting, once available: to the progress."""
        return [] if self._progress is None else [self._progress]

    def assign(self, job: Job) -> None:
        self.job, self._job_started = job, False
        self._timer.assign()
        self._result = self._handle.do.remote(job)

    def poll(self) -> None:
        """Query the progress of the job, if there is one, at most twice a second."""
        due = time.monotonic() - self._polled_at > _POLL_SECONDS
        if self.job and self._progress is None and due:
            self._progress, self._polled_at = self._handle.progress.remote(), time.monotonic()

    def receive(
        self, available: set[Any], queue: JobQueue, listener: ProgressListener, elapsed: float
    ) -> Iterator[Report]:
        """Process the actor's answers among `available`, and yield the resulting reports.

        `elapsed` is the time since the last call, in seconds. An actor that ended or is hung is marked
        `dead`.
        """
        try:
            if self._start in available:
                self._ray.get(self._start)
                self._start, self.ready = None, True
                self._timer.heartbeat()
            if self._progress in available:
                progress, self._progress = self._ray.get(self._progress), None
                self._timer.heartbeat()
                if self.job is not None and progress and progress[0] == self.job.shard:
                    if not self._job_started:
                        self._job_started = True
                        self._timer.begin()
                        listener.begin(self.job.shard)
                    listener.tick(*progress)
            if self._result in available:
                report = self._ray.get(self._result)
                self._result = self._progress = self.job = None
                yield report
        except self._ray.exceptions.RayError as error:
            yield from self._lose(queue, f"its Ray worker ended ({_summarise(error)})", str(error))
        else:
            if self.job is not None and (reason := self._timer.advance(elapsed)):
                yield from self._lose(queue, reason)

    def _lose(self, queue: JobQueue, reason: str, details: str = "") -> Iterator[Report]:
        self.dead, self.end_reason = True, details or reason
        job, self.job = self.job, None
        self.end()
        if job is not None:
            yield queue.record_loss(job, reason)

    def end(self) -> None:
        self._ray.kill(self._handle)


def _wait(ray: Any, actors: list[_Actor]) -> set[Any]:
    """Wait for an answer of any actor, and return the references of all available answers.

    This takes two calls of Ray for any number of actors.
    """
    refs = [ref for actor in actors for ref in actor.awaited()]
    ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)
    refs += [ref for actor in actors for ref in actor.unawaited()]
    return set(ray.wait(refs, num_returns=len(refs), timeout=0)[0])


def _summarise(error: Exception) -> str:
    """Return an error of Ray as one line: class and message of the task's own exception if there is one."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).splitlines()[0]}"
