"""The Ray engine: one actor per worker, on this machine or on a cluster.

Actors send bytes back and the driver writes them: no shared disk is needed, and an actor that was given
up and wakes again harms nothing. One that dies, or whose machine does, or that no longer answers is
replaced and its shard redone; without a cluster the run ends. Ray is imported when it is used.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import RunError
from .jobs import Done, Failed, Job, Listener, Queue, Report, Reports, Waiting
from .plan import Plan
from .ray_cluster import Cluster, gone, imported, knock, leave
from .watch import Awake, Limits, Watch
from .work import WorkerHost

_POLL_SECONDS = 0.5
_QUIET_SECONDS = 30.0  # without a worker at work, before a word is said
_STARTS_LOST = 3  # actors that die before they are given anything, one after the other
_HELD_BYTES = 2**28  # of results held back while workers are given their next job


class RayCrew:
    """So many actors; each takes `gpus` GPUs, and `cpus` CPUs of the cluster's count.

    Ray shows an actor its own GPUs and no others (CUDA_VISIBLE_DEVICES): "cuda" is a different one in
    each. `gpus=None` is one per worker where the cluster has any, else none.
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

    def __call__(self, plan: Plan, queue: Queue, listener: Listener) -> Reports:
        with TemporaryDirectory(prefix="floatscope-ray-", ignore_cleanup_errors=True) as empty:
            yield from self._in(empty, plan, queue, listener)

    def _in(self, empty: str, plan: Plan, queue: Queue, listener: Listener) -> Reports:
        ray = imported()
        ours = not ray.is_initialized()
        if ours:
            self._connect(ray, empty)
        crew: list[_Actor] = []
        try:
            yield from self._run(ray, plan, queue, listener, crew)
        except ConnectionError as error:
            raise gone(str(error)) from error
        finally:
            leave(ray, [worker.end for worker in crew] + [ray.shutdown] * ours)

    def _connect(self, ray: Any, empty: str) -> None:
        """Start Ray, or join a cluster.

        Ray puts the directory in which it is started first on its workers' module search path, so
        it is started in `empty`, a directory without files.
        """
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if self.address:
            options["address"] = self.address
        else:
            # As many as asked for, whatever the machine has: `--workers` is the user's choice.
            count = max(int(self.workers * self.cpus), os.cpu_count() or 1)
            options |= {"address": "local", "num_cpus": count, "include_dashboard": False}
        try:
            if self.address:
                knock(self.address)
            with chdir(empty):
                ray.init(**options)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise RunError(
                f"no Ray cluster at {self.address or 'this machine'}: {error}",
                "Check the address (`ray status` on the head node) and that RAY_AUTH_MODE and the "
                "token are the cluster's, or leave the address out for a local cluster.",
            ) from error

    def _run(
        self, ray: Any, plan: Plan, queue: Queue, listener: Listener, crew: list["_Actor"]
    ) -> Iterator[Report]:
        gpus = self.gpus
        if gpus is None:
            gpus = 1 if ray.cluster_resources().get("GPU") else 0
        options = {"num_cpus": self.cpus, "num_gpus": gpus, "max_concurrency": 2}
        remote = ray.remote(**options)(_Remote)
        # On this machine a worker finds what the driver finds, as a spawned process would.
        path, folder = ([], "") if self.address else (list(filter(None, sys.path)), os.getcwd())
        stillborn, quiet_since = 0, time.monotonic()
        awake, cluster = Awake(self.limits), Cluster(ray)
        while True:
            cluster.check()
            waiting = sum(worker.job is None for worker in crew)
            while len(crew) < self.workers and len(queue) > waiting:
                crew.append(_Actor(ray, remote, plan, path, folder, self.limits))
                waiting += 1
            for worker in crew:
                if worker.ready and worker.job is None and (job := queue.take()):
                    worker.give(job)
            if not len(queue) and not any(worker.job for worker in crew):
                return
            for worker in crew:
                worker.ask()
            here = _arrived(ray, crew)
            passed = awake.passed()
            landed: list[Report] = []
            for worker in list(crew):
                for report in worker.hear(here, queue, listener, passed):
                    landed.append(report)
                    # First its next job, then the disk: none waits for the others' shards. After
                    # a failure the driver has the word.
                    well = all(isinstance(one, Done) for one in landed)
                    if well and (job := queue.take()):
                        worker.give(job)
                    quiet_since = time.monotonic()
                if _weight(landed) > _HELD_BYTES:
                    yield from landed
                    landed = []
                if worker.dead:
                    crew.remove(worker)
                    stillborn = 0 if worker.ready else stillborn + 1
                    if stillborn > _STARTS_LOST:
                        yield from landed
                        raise RunError(
                            f"Ray workers end before they start: {worker.why[-500:]}",
                            "Floatscope must be installed, in this version, on every machine.",
                        )
                elif worker.job:
                    quiet_since = time.monotonic()
            yield from landed
            if time.monotonic() - quiet_since > _QUIET_SECONDS:
                quiet_since = time.monotonic()
                yield Waiting(
                    f"no worker has started: each needs {self.cpus:g} CPUs and {gpus:g} GPUs, "
                    f"free now are {cluster.free()}"
                )


class _Remote:
    """What lives in the cluster. A second thread answers `come` while a job is done."""

    def __init__(
        self, task: tuple[str, dict[str, Any], dict[str, Any]], path: list[str], folder: str
    ) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path)
        if folder:
            os.chdir(folder)
        self._host = WorkerHost(*task)
        self._come: tuple[str, float, float] | None = None

    def ready(self) -> bool:
        return True

    def do(self, job: Job) -> Done | Failed:
        def come(done: float = 0.0, of: float = 1.0) -> None:
            self._come = (job.shard, done, of)

        return self._host.do(job, come, come)

    def come(self) -> tuple[str, float, float] | None:
        """The shard in hand, and how far it is."""
        return self._come


class _Actor:
    """An actor as the driver sees it: at most one job and one question in flight."""

    def __init__(
        self, ray: Any, remote: Any, plan: Plan, path: list[str], folder: str, limits: Limits
    ) -> None:
        task = plan.worker, plan.request, plan.context
        self._ray, self._handle = ray, remote.remote(task, path, folder)
        self._starting: Any = self._handle.ready.remote()
        self._doing: Any = None
        self._asked: Any = None
        self._asked_at = 0.0
        self._begun = False
        self._watch = Watch(limits)
        self.job: Job | None = None
        self.ready = self.dead = False
        self.why = ""

    def refs(self) -> list[Any]:
        """What is waited for."""
        return [ref for ref in (self._starting, self._doing) if ref is not None]

    def asked(self) -> list[Any]:
        """What nobody waits for, but hears when it is there."""
        return [] if self._asked is None else [self._asked]

    def give(self, job: Job) -> None:
        self.job, self._begun = job, False
        self._watch.given()
        self._doing = self._handle.do.remote(job)

    def ask(self) -> None:
        if self.job and self._asked is None and time.monotonic() - self._asked_at > _POLL_SECONDS:
            self._asked, self._asked_at = self._handle.come.remote(), time.monotonic()

    def hear(
        self, here: set[Any], queue: Queue, listener: Listener, passed: float
    ) -> Iterator[Report]:
        """What has arrived, without waiting for anything; `passed` seconds after the last time."""
        try:
            if self._starting in here:
                self._ray.get(self._starting)
                self._starting, self.ready = None, True
                self._watch.heard()
            if self._asked in here:
                come, self._asked = self._ray.get(self._asked), None
                self._watch.heard()
                if self.job is not None and come is not None and come[0] == self.job.shard:
                    if not self._begun:
                        self._begun = True
                        self._watch.began()
                        listener.begin(self.job.shard)
                    listener.tick(*come)
            if self._doing in here:
                report = self._ray.get(self._doing)
                self._doing = self._asked = self.job = None
                yield report
        except self._ray.exceptions.RayError as error:
            yield from self._lose(queue, f"its Ray worker ended ({_short(error)})", str(error))
        else:
            if self.job is not None and (why := self._watch.passed(passed)):
                yield from self._lose(queue, why)

    def _lose(self, queue: Queue, why: str, whole: str = "") -> Iterator[Report]:
        self.dead, self.why = True, whole or why
        job, self.job = self.job, None
        self.end()
        if job is not None:
            yield queue.lose(job, why)

    def end(self) -> None:
        self._ray.kill(self._handle)


def _arrived(ray: Any, crew: list[_Actor]) -> set[Any]:
    """All that is there, as soon as something is: two calls, however many workers."""
    refs = [ref for worker in crew for ref in worker.refs()]
    ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)
    refs += [ref for worker in crew for ref in worker.asked()]
    return set(ray.wait(refs, num_returns=len(refs), timeout=0)[0])


def _weight(reports: list[Report]) -> int:
    return sum(len(report.data) for report in reports if isinstance(report, Done))


def _short(error: Exception) -> str:
    """A task's own exception where there is one; the rest is Ray's advice, a screen of it."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).splitlines()[0]}"
