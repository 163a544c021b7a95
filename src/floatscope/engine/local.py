"""Run jobs in this process, or distribute them to worker processes on this machine (the local engine).

A worker that closes its pipe has died, and a worker that misses its heartbeats is hung. Dead and hung workers
are replaced. On a machine with GPUs, each worker process sees one GPU.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from ..children import ChildProcess
from .hanging import HangTimer, Limits, ListeningClock
from .hardware import VISIBLE_GPUS, gpu_names, least_used
from .jobs import Done, Failed, Job, JobQueue, ProgressListener, Report, Reports
from .plan import Plan
from .work import WorkerHost

_HEARTBEAT, _BEGUN, _ENDED = "heartbeat", "begun", "ended"  # messages of a worker process


def run_in_process(plan: Plan, queue: JobQueue, listener: ProgressListener) -> Reports:
    """Run the jobs in this process, one after the other, and yield their reports."""
    host = WorkerHost(plan.worker, plan.request, plan.context)
    while job := queue.take():
        yield host.do(job, partial(listener.begin, job.shard), partial(listener.tick, job.shard))


class LocalWorkers:
    """An engine of worker processes on this machine.

    Args:
        workers (int): Number of processes.
        limits (Limits): Time limits after which a worker counts as hung.
        devices (int): Number of GPUs, which are assigned to the workers in turn; 0 by default.
    """

    def __init__(self, workers: int, limits: Limits, devices: int = 0) -> None:
        self.workers, self.limits, self.gpus = workers, limits, gpu_names(devices)

    def __call__(self, plan: Plan, queue: JobQueue, listener: ProgressListener) -> Reports:
        workers: list[_Worker] = []
        inbox: SimpleQueue[tuple[_Worker, Any]] = SimpleQueue()
        clock = ListeningClock(self.limits)
        try:
            while True:
                idle = sum(worker.job is None for worker in workers)
                while len(workers) < self.workers and len(queue) > idle:
                    gpu = least_used(self.gpus, [worker.gpu for worker in workers])
                    workers.append(_Worker(plan, self.limits, gpu))
                    workers[-1].start(inbox)
                    idle += 1
                for worker in workers:
                    if worker.job is None and (job := queue.take()):
                        worker.assign(job)
                if not any(worker.job for worker in workers):
                    return
                for worker, message in _receive(inbox, self.limits.heartbeat):
                    if worker not in workers:  # it was replaced before this message was read
                        continue
                    report = worker.handle(message, queue, listener)
                    if worker.dead:
                        workers.remove(worker)
                        worker.child.close()
                    if report:
                        yield report
                elapsed = clock.elapsed()  # every message sent until now has been read
                for worker in [worker for worker in workers if worker.job]:
                    if reason := worker.timer.advance(elapsed):
                        workers.remove(worker)
                        worker.child.close()
                        assert worker.job is not None
                        yield queue.record_loss(worker.job, reason)
        finally:
            for worker in workers:
                worker.child.close()


def _receive(inbox: SimpleQueue[Any], seconds: float) -> Iterator[Any]:
    """Wait up to `seconds` for a message, then yield all (worker, message) pairs that have arrived."""
    with suppress(Empty):
        yield inbox.get(timeout=seconds)
        while True:
            yield inbox.get_nowait()


class _Worker:
    """The driver's side of a worker process, with its current job."""

    def __init__(self, plan: Plan, limits: Limits, gpu: str | None) -> None:
        module = plan.worker.partition(":")[0]
        self.child = ChildProcess(
            _work,
            (plan.worker, plan.request, plan.context, limits.heartbeat),
            preload=module if gpu is None else "",
            environment={} if gpu is None else {VISIBLE_GPUS: gpu},
        )
        self.gpu = gpu
        self.timer = HangTimer(limits)
        self.job: Job | None = None
        self.dead = False

    def start(self, inbox: "SimpleQueue[tuple[_Worker, Any]]") -> None:
        self.child.start(
            lambda message: inbox.put((self, message)), lambda: inbox.put((self, _ENDED))
        )

    def assign(self, job: Job) -> None:
        self.job = job
        self.timer.assign()
        self.child.send(job)

    def handle(self, message: Any, queue: JobQueue, listener: ProgressListener) -> Report | None:
        """Process a message of the worker; return the resulting report, or None without a report."""
        job = self.job
        if message == _ENDED:
            self.dead, self.job = True, None
            return queue.record_loss(job, _end_reason(self.child.wait())) if job else None
        self.timer.heartbeat()
        if isinstance(message, Done | Failed):
            self.job = None
            return message
        if message != _HEARTBEAT and job is not None:
            if message == _BEGUN:
                self.timer.begin()
                listener.begin(job.shard)
            else:
                listener.tick(job.shard, *message)
        return None


def _end_reason(code: int | None) -> str:
    hint = ""
    if code == 1:  # a new interpreter imports the main module, and a bare call in it runs again
        hint = "; in a script, call it under `if __name__ == '__main__':`"
    return f"its worker ended with exit code {code}{hint}"


def _work(
    pipe: Connection,
    worker: str,
    request: dict[str, Any],
    context: dict[str, Any],
    heartbeat: float,
) -> None:
    """Run the jobs that arrive in a pipe; answer with heartbeats, starts, progress, and Done or Failed."""
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            pipe.send(message)

    threading.Thread(target=_send_heartbeats, args=(send, heartbeat), daemon=True).start()
    host = WorkerHost(worker, request, context)
    with suppress(EOFError):
        while True:
            job = pipe.recv()
            send(
                host.do(
                    job, lambda: send(_BEGUN), lambda completed, total: send((completed, total))
                )
            )


def _send_heartbeats(send: Callable[[Any], None], seconds: float) -> None:
    """Send a heartbeat every `seconds`, until the driver closes the pipe.

    A stopped process, or a call that keeps the interpreter lock, sends no heartbeats.
    """
    with suppress(OSError):  # the driver has closed the pipe
        while True:
            send(_HEARTBEAT)
            time.sleep(seconds)
