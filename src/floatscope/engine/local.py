"""The local engine: in this process, or in several spawned ones that pull jobs.

Processes are spawned, not forked: a forked child of a process that uses threads or a GPU is broken.
A worker that dies is noticed by the end of its pipe, and replaced. Workers die with their parent.
"""

import os
import signal
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import connection, get_context, parent_process, resource_tracker
from typing import Any

from .jobs import Done, Failed, Job, Listener, Queue, Report, Reports
from .plan import Plan
from .work import WorkerHost

_SPAWN = get_context("spawn")


def in_process(plan: Plan, queue: Queue, listener: Listener) -> Reports:
    """One job after the other, here."""
    host = WorkerHost(plan.worker, plan.request)
    while job := queue.take():
        yield host.do(job, partial(listener.begin, job.shard), partial(listener.tick, job.shard))


class Spawned:
    """The same by so many processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __call__(self, plan: Plan, queue: Queue, listener: Listener) -> Reports:
        crew: list[_Process] = []
        try:
            while True:
                while len(crew) < self.workers and len(queue) > sum(w.job is None for w in crew):
                    crew.append(_Process(plan))
                for worker in crew:
                    if worker.job is None and (job := queue.take()):
                        worker.give(job)
                busy = {worker.pipe: worker for worker in crew if worker.job}
                if not busy:
                    return
                for pipe in connection.wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    report = worker.hear(queue, listener)
                    if worker.dead:
                        crew.remove(worker)
                        worker.end()
                    if report:
                        yield report
        finally:
            for worker in crew:
                worker.end()


class _Process:
    """A worker process as its parent sees it."""

    def __init__(self, plan: Plan) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(
            target=_serve, args=(theirs, plan.worker, plan.request), daemon=True
        )
        # Ctrl-C reaches every process of a terminal. The child inherits the blocked signal and
        # leaves the interrupt to the driver; the driver gets it as soon as the block is lifted.
        resource_tracker.ensure_running()  # its own start, at the first process, lifts the block
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the pipe ends when the child does
        self.job: Job | None = None
        self.dead = False

    def give(self, job: Job) -> None:
        self.job = job
        with suppress(OSError):  # if it died idle, its pipe has ended, which `hear` will find
            self.pipe.send(job)

    def hear(self, queue: Queue, listener: Listener) -> Report | None:
        """One message; the end of the pipe is the end of the worker."""
        job = self.job
        assert job is not None
        try:
            message: Any = self.pipe.recv()
        except (EOFError, OSError):
            self.dead, self.job = True, None
            self.process.join(10)
            return queue.lose(job, _epitaph(self.process.exitcode))
        if isinstance(message, Done | Failed):
            self.job = None
            return message
        if message is None:
            listener.begin(job.shard)
        else:
            listener.tick(job.shard, *message)
        return None

    def end(self) -> None:
        self.process.kill()  # it writes no file, so there is nothing it could leave half done
        self.process.join()
        self.pipe.close()
        self.process.close()


def _epitaph(code: int | None) -> str:
    hint = ""
    if code == 1:  # spawned processes import the main module, and a bare call in it runs again
        hint = "; in a script, call it under `if __name__ == '__main__':`"
    return f"its worker ended with exit code {code}{hint}"


def _serve(pipe: connection.Connection, worker: str, request: dict[str, Any]) -> None:
    """A worker process: jobs in; `None` at a beginning, (done, of), and Done or Failed out."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    host = WorkerHost(worker, request)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(host.do(job, lambda: pipe.send(None), lambda done, of: pipe.send((done, of))))


def _die_with_parent() -> None:
    """A killed driver's workers would go on computing what its successor computes too."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
