"""Run a model's worker for the server: queue jobs, forward events, and replace a worker that dies.

One job runs at a time. The other jobs wait in a queue, and each client is told the place of its job. If the
client of a running job disconnects, the job is ended between two steps, and then the next job starts. A
worker that dies, or sends no message for `STALL` seconds during a job, is replaced; the client of the job
gets an error.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from ..children import Child
from ..report.answers import Refused
from . import worker
from .limits import LIMITS
from .prompts import layout_of

STALL = 600.0  # seconds without a word, while a job runs
_FINAL = {"done", "error", "cancelled", "answer"}
Event = dict[str, Any] | bytes  # a step goes through as it came


class ModelHosts:
    """The hosts of a page that are running a job; each worker is told how many models share the cores."""

    def __init__(self) -> None:
        self.busy: set[ModelHost] = set()

    def begins(self, host: "ModelHost") -> int:
        self.busy.add(host)
        self._tell({host})
        return len(self.busy)

    def ends(self, host: "ModelHost") -> None:
        self.busy.discard(host)
        self._tell(set())

    def _tell(self, but: "set[ModelHost]") -> None:
        for host in self.busy - but:
            host.send({worker.SHARE: len(self.busy)})


class _Ticket:
    """A job's place in the queue."""


class ModelHost:
    """The host of one model; the worker is a process unless `make_worker` returns another kind of worker."""

    def __init__(
        self,
        model_id: str,
        spec: str,
        options: dict[str, Any],
        *,
        crew: ModelHosts | None = None,
        make_worker: Callable[[], Child] | None = None,
    ) -> None:
        self.crew = crew or ModelHosts()
        self.id, self.spec, self.options = model_id, spec, options
        self.state, self.error = "loading", {"kind": "", "message": "", "remedy": ""}
        self.facts: dict[str, Any] = {}
        self._line: deque[_Ticket] = deque()
        self._changed = asyncio.Event()
        self._numbers = count(1)
        self._job = 0
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._draining: set[asyncio.Task[None]] = set()
        self._make_worker = make_worker or partial(worker.worker_process, spec, options)
        self._worker: Child | None = None

    def about(self) -> dict[str, Any]:
        """Return the model's state, queue length, error and facts, as the page shows them."""
        status = {"id": self.id, "spec": self.spec, "state": self.state, "queue": len(self._line)}
        return {**status, **self.error, **self.facts}

    @property
    def layout(self) -> str:
        """The model's layout of questions: "world" or "plain"."""
        return str(self.facts.get("layout") or layout_of(self.spec))

    # The process

    def start(self) -> None:
        loop, child = asyncio.get_running_loop(), self._make_worker()

        def in_loop(callback: Callable[..., None], *arguments: Any) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(callback, child, *arguments)

        child.start_in_thread(partial(in_loop, self._heard), partial(in_loop, self._ended))
        self._worker = child

    async def settled(self) -> None:
        """Wait until the model is loaded, or has failed to load."""
        while self.state not in ("ready", "failed"):
            await self._changed.wait()

    def _heard(self, child: Child, data: bytes) -> None:
        if child is not self._worker:
            return
        if self.state == "ready":
            self._inbox.put_nowait(data)
            return
        message = json.loads(data)
        if message["event"] == "ready":
            self.state, self.facts = "ready", message["facts"]
        elif message["event"] == "failed":
            self.state, self.error = "failed", message["error"]
        self._notify()

    def _ended(self, child: Child) -> None:
        """Handle the end of the pipe, which means that the process is dead or about to end."""
        if child is not self._worker or self.state == "failed":
            return
        code = child.wait()
        child.kill()
        why = f"the process of {self.spec} ended ({_named(code)})"
        if self.state != "ready":  # it would die again
            self.state, self.error = "failed", {**worker.memory_error(why), "kind": "worker"}
            self._notify()
            return
        self._lost(why)

    def _lost(self, why: str) -> None:
        """Answer the lost worker's job with the error `why`, and start another worker."""
        remedy = (
            "Another one is being started: run it again. If this repeats, memory may be short: lower the "
            "length, use fewer passages, or a smaller model."
        )
        error = {"kind": "worker", "message": why, "remedy": remedy}
        self._inbox.put_nowait(worker.encoded({"event": "error", "error": error, "job": self._job}))
        self.state = "restarting"
        self.start()
        self._notify()

    def close(self) -> None:
        child, self._worker = self._worker, None
        if child is not None:
            child.send(worker.encoded({worker.END: True}))  # ends a thread
            child.kill()

    # Jobs

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def events(self, job: dict[str, Any]) -> AsyncGenerator[Event, None]:
        """Yield a job's places in the queue, then its worker's events. Closing the generator ends the job."""
        if len(self._line) > LIMITS["queue"]:
            raise Refused(
                429,
                "busy",
                f"{len(self._line)} requests wait for {self.spec}",
                "Wait, and try again.",
            )
        ticket, last_place = _Ticket(), None
        self._line.append(ticket)
        started = False
        try:
            while self._line[0] is not ticket or self.state != "ready":
                if self.state == "failed":
                    raise Refused(503, **self.error)
                why = "busy" if self.state == "ready" else "loading"
                place = (self._line.index(ticket), why)
                changed = self._changed
                if place != last_place:
                    last_place = place
                    yield {"event": "queued", "place": place[0], "why": why}
                await changed.wait()
            self._job = next(self._numbers)
            while not self._inbox.empty():  # of a job whose worker died
                self._inbox.get_nowait()
            started = True
            self.send({**job, "job": self._job, worker.SHARE: self.crew.begins(self)})
            async for event in self._heard_of(self._job):
                if isinstance(event, dict) and event["event"] in _FINAL:
                    started = False
                yield event
        finally:
            if started:  # nobody listens any more: it ends, and the line waits for that
                task = asyncio.ensure_future(self._drain(ticket, self._job))
                self._draining.add(task)
                task.add_done_callback(self._draining.discard)
            else:
                self._leave(ticket)

    async def next_message(self) -> bytes:
        """Return the worker's next message; raise TimeoutError if none arrives within `STALL` seconds."""
        return await asyncio.wait_for(self._inbox.get(), STALL)

    async def _heard_of(self, number: int) -> AsyncGenerator[Event, None]:
        while True:
            try:
                data = await self.next_message()
            except TimeoutError:
                self.close()  # what it still says is not heard
                self._lost(f"no word from {self.spec} for {STALL:g} seconds, and it was ended")
                continue
            if data.startswith(b'{"event":"step"'):
                yield data
                continue
            message = json.loads(data)
            if message["job"] == number:
                yield message
                if message["event"] in _FINAL:
                    return

    async def _drain(self, ticket: _Ticket, number: int) -> None:
        try:
            self.send({worker.CANCEL: number})
            async for _ in self._heard_of(number):
                pass
        finally:
            self._leave(ticket)

    def send(self, message: dict[str, Any]) -> None:
        if self._worker is not None:
            self._worker.send(worker.encoded(message))

    def _leave(self, ticket: _Ticket) -> None:
        if self._line[0] is ticket:
            self.crew.ends(self)
        self._line.remove(ticket)
        self._notify()


def _named(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}" + (": often the system, out of memory" if code == -9 else "")
    return f"exit code {code}"
