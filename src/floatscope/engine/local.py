"""The local engine: in this process, or in several others that pull jobs.

No process is forked from this one: a forked child of a process that uses threads or a GPU is broken. On
Linux without a GPU workers are forked from a server that has imported what a worker needs and runs
nothing, so that only the first one waits for it; elsewhere each is started anew.
A worker that dies is noticed by the end of its pipe, one that hangs by its silence; both are replaced.
Workers die with their parent. Where there are GPUs, each spawned worker sees one of them.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import connection, get_context, parent_process, resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..children import safe_path
from . import gpus
from .jobs import Done, Failed, Job, Listener, Queue, Report, Reports
from .plan import Plan
from .watch import Awake, Limits, Watch
from .work import WorkerHost

if TYPE_CHECKING:  # Windows has no ForkServerContext
    from multiprocessing.context import ForkServerContext, SpawnContext

_NVIDIA = Path("/dev/nvidiactl")  # there where a program may meet an NVIDIA GPU
_BEAT, _BEGUN, _ENDED = "beat", "begun", "ended"  # messages; the last is put by who hears no more
_DYING_SECONDS = (
    10.0  # a process the kernel cannot end, in a driver or on a dead disk, is left alone
)


def in_process(plan: Plan, queue: Queue, listener: Listener) -> Reports:
    """One job after the other, here."""
    host = WorkerHost(plan.worker, plan.request, plan.context)
    while job := queue.take():
        yield host.do(job, partial(listener.begin, job.shard), partial(listener.tick, job.shard))


class Spawned:
    """The same by so many processes, which share so many GPUs out."""

    def __init__(self, workers: int, limits: Limits, devices: int = 0) -> None:
        self.workers, self.limits, self.gpus = workers, limits, gpus.names(devices)

    def __call__(self, plan: Plan, queue: Queue, listener: Listener) -> Reports:
        crew: list[_Process] = []
        inbox: SimpleQueue[tuple[_Process, Any]] = SimpleQueue()
        awake = Awake(self.limits)
        try:
            while True:
                while len(crew) < self.workers and len(queue) > sum(w.job is None for w in crew):
                    gpu = gpus.least_used(self.gpus, [worker.gpu for worker in crew])
                    crew.append(_Process(plan, self.limits, gpu))
                    crew[-1].start(inbox)
                for worker in crew:
                    if worker.job is None and (job := queue.take()):
                        worker.give(job)
                if not any(worker.job for worker in crew):
                    return
                for worker, message in _arrived(inbox, self.limits.beat):
                    if worker not in crew:  # it was given up, whatever it still said
                        continue
                    report = worker.hear(message, queue, listener)
                    if worker.dead:
                        crew.remove(worker)
                        worker.end()
                    if report:
                        yield report
                passed = awake.passed()  # all that was said until now has been heard
                for worker in [worker for worker in crew if worker.job]:
                    if why := worker.watch.passed(passed):
                        crew.remove(worker)
                        worker.end()
                        assert worker.job is not None
                        yield queue.lose(worker.job, why)
        finally:
            for worker in crew:
                worker.end()


def _arrived(inbox: SimpleQueue[Any], seconds: float) -> Iterator[Any]:
    """Wait for a message of the workers, then yield all that have arrived."""
    with suppress(Empty):
        yield inbox.get(timeout=seconds)
        while True:
            yield inbox.get_nowait()


class _Process:
    """A worker process as its parent sees it. A thread reads its pipe: a message may stop halfway."""

    def __init__(self, plan: Plan, limits: Limits, gpu: str | None) -> None:
        context = _context(plan.worker, gpu)
        self.pipe, self._theirs = context.Pipe()
        self.gpu = gpu
        # A server's children have its surroundings, not those of today.
        task = plan.worker, plan.request, plan.context
        args = (self._theirs, task, limits.beat, gpu, dict(os.environ))
        self.process = context.Process(target=_serve, args=args, daemon=True)
        self.watch = Watch(limits)
        self.job: Job | None = None
        self.dead = False
        self._reader: threading.Thread | None = None

    def start(self, inbox: "SimpleQueue[tuple[_Process, Any]]") -> None:
        # Ctrl-C reaches every process of a terminal. The child inherits the blocked signal and
        # leaves the interrupt to the driver; the driver gets it as soon as the block is lifted.
        with safe_path():
            resource_tracker.ensure_running()  # its own start, at the first process, lifts the block
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with safe_path():
                self.process.start()
            self._theirs.close()  # so that the pipe ends when the child does
            self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
            self._reader.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _read(self, inbox: "SimpleQueue[tuple[_Process, Any]]") -> None:
        try:
            while True:
                inbox.put((self, self.pipe.recv()))
        except (EOFError, OSError):
            inbox.put((self, _ENDED))

    def give(self, job: Job) -> None:
        self.job = job
        self.watch.given()
        with suppress(OSError):  # if it died idle, its pipe has ended, which `hear` will find
            self.pipe.send(job)

    def hear(self, message: Any, queue: Queue, listener: Listener) -> Report | None:
        """One message; the end of the pipe is the end of the worker."""
        job = self.job
        if message == _ENDED:
            self.dead, self.job = True, None
            self.process.join(_DYING_SECONDS)
            return queue.lose(job, _epitaph(self.process.exitcode)) if job else None
        self.watch.heard()
        if isinstance(message, Done | Failed):
            self.job = None
            return message
        if message != _BEAT and job is not None:
            if message == _BEGUN:
                self.watch.began()
                listener.begin(job.shard)
            else:
                listener.tick(job.shard, *message)
        return None

    def end(self) -> None:
        """Also of one that is stopped: it writes no file, so there is nothing to leave half done."""
        if self._reader is None:
            return
        self.process.kill()
        self.process.join(_DYING_SECONDS)
        self._reader.join(_DYING_SECONDS)
        if self.process.exitcode is not None and not self._reader.is_alive():
            self.pipe.close()
            self.process.close()


def _context(worker: str, gpu: str | None) -> "ForkServerContext | SpawnContext":
    """How a process is started. What has looked at a GPU cannot be forked, so there is no server then."""
    if sys.platform != "linux" or gpu is not None or _NVIDIA.exists():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([worker.partition(":")[0]])  # counts until the server runs
    return context


def _epitaph(code: int | None) -> str:
    hint = ""
    if code == 1:  # spawned processes import the main module, and a bare call in it runs again
        hint = "; in a script, call it under `if __name__ == '__main__':`"
    return f"its worker ended with exit code {code}{hint}"


def _serve(
    pipe: connection.Connection,
    task: tuple[str, dict[str, Any], dict[str, Any]],
    beat: float,
    gpu: str | None,
    environ: dict[str, str],
) -> None:
    """A worker process: jobs in; signs of life, a beginning, (done, of), Done and Failed out."""
    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT}
    )  # as `start` says; for any server's child
    os.environ.clear()
    os.environ.update(environ)
    if gpu is not None:
        os.environ[gpus.VISIBLE] = gpu  # before the worker is made: CUDA looks once, when it starts
    threading.Thread(target=_die_with_parent, daemon=True).start()
    one_at_a_time = threading.Lock()

    def send(message: Any) -> None:
        with one_at_a_time:
            pipe.send(message)

    threading.Thread(target=_live, args=(send, beat), daemon=True).start()
    host = WorkerHost(*task)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        send(host.do(job, lambda: send(_BEGUN), lambda done, of: send((done, of))))


def _live(send: Callable[[Any], None], beat: float) -> None:
    """Signs of life: none comes from a process that is stopped, or in which one call holds all."""
    with suppress(OSError):  # nobody listens any more
        while True:
            send(_BEAT)
            time.sleep(beat)


def _die_with_parent() -> None:
    """A killed driver's workers would go on computing what its successor computes too."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
