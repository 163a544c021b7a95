"""A worker seen from outside: started beside the server's loop, written to and heard by threads, ended.

Starting one takes seconds, a pipe may be full, and a message may stop halfway: none of that may hold up the
server. What is heard is handed to the loop. No job is known here.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..children import safe_path
from . import worker

_DYING = 10.0  # seconds for a process that was ended
_NVIDIA = Path("/dev/nvidiactl")  # there where a program may meet an NVIDIA GPU
Launch = Callable[[], tuple[Connection, Any]]  # its pipe, and its process where it has one


class Running:
    """A worker from its start to its end; `heard` and `ended` are called in the loop, with it."""

    def __init__(
        self,
        launch: Launch,
        heard: "Callable[[Running, bytes], None]",
        ended: "Callable[[Running], None]",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._launch, self._heard, self._ended = launch, heard, ended
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.process: Any = None
        self._over = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            pipe, self.process = self._launch()
        except Exception:  # no memory or no room for another process: as one that died at once
            self._tell(partial(self._ended, self))
            return
        if self._over:  # meanwhile
            self._kill()
        writing = threading.Thread(target=self._write, args=(pipe,), daemon=True)
        writing.start()
        try:
            while True:
                self._tell(partial(self._heard, self, pipe.recv_bytes()))
        except (EOFError, OSError):
            self._tell(partial(self._ended, self))
        self._outbox.put(None)
        writing.join()
        pipe.close()

    def _tell(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(act)

    def _write(self, pipe: Connection) -> None:
        with suppress(OSError):  # it has died: whoever reads the pipe says so
            while (message := self._outbox.get()) is not None:
                pipe.send_bytes(message)

    def send(self, message: dict[str, Any]) -> None:
        self._outbox.put(worker.encoded(message))

    def end(self) -> int | None:
        """Make sure that it is gone; its exit code."""
        self._over = True
        self.send({worker.END: True})  # a thread ends by itself
        self._outbox.put(None)
        return self._kill()

    def _kill(self) -> int | None:
        if self.process is None:
            return None
        self.process.kill()
        self.process.join(_DYING)
        code: int | None = self.process.exitcode
        return code


def in_process(spec: str, options: dict[str, Any]) -> tuple[Connection, Any]:
    """A process of its own, which loads the model."""
    # Threads of a matrix product that wait for one another sleep soon. As libgomp has it they spin for
    # milliseconds, so that beside other work on the machine a step took ten times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    kind = "forkserver" if sys.platform == "linux" and not _NVIDIA.exists() else "spawn"
    context: Any = get_context(kind)
    if kind == "forkserver":
        context.set_forkserver_preload([f"{__package__}.jobs"])
    ours, theirs = context.Pipe()
    args = (theirs, spec, options, dict(os.environ))
    process = context.Process(target=worker.begin, args=args, daemon=True)
    with safe_path():
        process.start()
    theirs.close()  # so that the pipe ends when the child does
    return ours, process


def in_thread(model: Any, layout: str) -> tuple[Connection, Any]:
    """A thread of this process, for a model that is loaded already. What hangs cannot be ended."""
    ours, theirs = Pipe()
    args = (theirs, lambda: model, layout)
    threading.Thread(target=worker.work, args=args, daemon=True).start()
    return ours, None
