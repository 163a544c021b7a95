"""Start child processes, exchange messages with them, and end them.

`ChildProcess` runs a function in another process; threads of this process exchange messages with it.
`LineProcess` runs a module that answers each input line with one output line. The child processes import
nothing from the working directory. By default `python -m`, `python -c` and multiprocessing put that
directory first on the module search path, and a downloaded checkpoint or run may contain a file such as
`selectors.py`. With PYTHONSAFEPATH set, the interpreter does not put it there.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from multiprocessing import Pipe, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

_SAFE_PATH = "PYTHONSAFEPATH"
_NVIDIA = Path("/dev/nvidiactl")  # exists if programs can use an NVIDIA GPU
# After this time a process that the kernel cannot kill (blocked in a driver or on a dead disk) is
# abandoned.
_DYING_SECONDS = 10.0
_environment_lock = threading.Lock()

OnMessage = Callable[[Any], None]
OnEnd = Callable[[], None]


class Child:
    """Base class of ChildProcess and ChildThread, which exchange messages with a function through a pipe.

    One thread reads the pipe and another writes to it, so neither a full pipe nor a partial message
    blocks the caller. `on_message` and `on_end` of `start` are called in the reading thread.
    """

    def __init__(self) -> None:
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self._reader: threading.Thread | None = None

    def start(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Start the function; call `on_message` with each of its messages, `on_end` when its pipe closes."""
        raise NotImplementedError

    def start_in_thread(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Call `start` in a thread, because it may take seconds; if it fails, call `on_end`."""

        def start() -> None:
            try:
                self.start(on_message, on_end)
            except Exception:  # no memory for another process, or too many processes
                on_end()

        threading.Thread(target=start, daemon=True).start()

    def send(self, message: Any) -> None:
        """Queue a message without waiting for the pipe."""
        self._outbox.put(message)

    def wait(self) -> int | None:
        """Wait for a process that is ending; return its exit code, None for a thread or after a timeout."""
        return None

    def kill(self) -> int | None:
        """Kill a process and return its exit code; do nothing and return None for a thread."""
        return None

    def _exchange(self, pipe: Connection, on_message: OnMessage, on_end: OnEnd) -> None:
        self._reader = threading.Thread(
            target=self._read, args=(pipe, on_message, on_end), daemon=True
        )
        self._reader.start()

    def _read(self, pipe: Connection, on_message: OnMessage, on_end: OnEnd) -> None:
        writer = threading.Thread(target=self._write, args=(pipe,), daemon=True)
        writer.start()
        with closing(pipe):
            try:
                while True:
                    on_message(pipe.recv())
            except (EOFError, OSError):
                on_end()
            self._outbox.put(None)
            writer.join()

    def _write(self, pipe: Connection) -> None:
        with suppress(OSError):  # the other end is closed; the reading thread reports it
            while (message := self._outbox.get()) is not None:
                pipe.send(message)


class ChildProcess(Child):
    """A function in its own process, which is killed when this process ends.

    This process is never forked, because a forked child of a process that uses threads or a GPU fails. On
    Linux without a GPU, children are forked from a server process that has imported `preload` and does
    nothing else, so only the first child waits for imports. On other systems each child is a new
    interpreter. Ctrl-C reaches every process of a terminal and is therefore blocked in children.

    Args:
        target (callable): function of a module, called in the child as `target(pipe, *arguments)`.
        arguments (tuple): further arguments of the function, which are pickled.
        preload (str): module that the server imports once, before its first child; "" for no server.
        environment (mapping): environment variables of the child, in addition to those of this process.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        preload: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._target, self._arguments, self._preload = target, arguments, preload
        self._environment = environment or {}
        self._killed = False
        self.process: BaseProcess | None = None

    def start(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Start the process and the threads of its pipe; kill it if `kill` was called in the meantime."""
        context = _start_context(self._preload)
        pipe, child_pipe = context.Pipe()
        # Children of a server inherit the environment in which the server was started.
        environment = {**os.environ, **self._environment}
        process = context.Process(
            target=_run,
            args=(child_pipe, self._target, self._arguments, environment),
            daemon=True,
        )
        with _safe_path():
            # started before SIGINT is blocked, because its start unblocks SIGINT
            resource_tracker.ensure_running()
        with _blocked_interrupts():  # this process does not receive Ctrl-C in this block either
            with _safe_path():
                process.start()
            self.process = process
            child_pipe.close()  # so that the pipe is closed when the child ends
            self._exchange(pipe, on_message, on_end)
        if self._killed:
            self.kill()

    def wait(self) -> int | None:
        """Wait up to ten seconds for the process to end; return its exit code, or None without a code."""
        if self.process is None:
            return None
        self.process.join(_DYING_SECONDS)
        return self.process.exitcode

    def kill(self) -> int | None:
        """Kill the process and return its exit code; if it is still being started, kill it afterwards."""
        self._killed = True
        if self.process is not None:
            self.process.kill()
        return self.wait()

    def close(self) -> None:
        """Kill the process and free its resources in this process."""
        code = self.kill()
        if self._reader is None or self.process is None:
            return
        self._reader.join(_DYING_SECONDS)
        if code is not None and not self._reader.is_alive():
            self.process.close()


class ChildThread(Child):
    """A function that runs in a thread of this process. A hung thread cannot be ended.

    Args:
        target (callable): called as `target(pipe, *arguments)`; the function closes the pipe when it ends.
        arguments (tuple): further arguments of the function.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self._target, self._arguments = target, arguments

    def start(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Start the function in a new thread, with one thread to read its pipe and one to write."""
        pipe, child_pipe = Pipe()
        arguments = (child_pipe, *self._arguments)
        threading.Thread(target=self._target, args=arguments, daemon=True).start()
        self._exchange(pipe, on_message, on_end)


class LineProcess:
    """A module that runs in its own interpreter and answers each input line with one output line.

    The interpreter is started for the first line, and again after it has ended. It does not import the
    main module of this process, and it ends when its input is closed. If this process is forked, the
    forked process starts another interpreter.

    Args:
        module (str): name of the module, run as `python -m module`.
    """

    def __init__(self, module: str) -> None:
        self._command = [sys.executable, "-m", module]
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, line: bytes) -> bytes:
        """Send a line and return the answer line.

        Args:
            line (bytes): the request, with its newline.

        Returns:
            The answer with its newline; empty if the process ended without an answer.
        """
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            # such as Ctrl-C: the pending answer would be returned for the next line
            except BaseException:
                self.stop()
                raise
            if not answer.endswith(b"\n"):
                self.stop()
                return b""
            return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            # so that the child finds the same packages
            path = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path, _SAFE_PATH: "1"},
                start_new_session=True,  # only this process handles Ctrl-C
            )
            self._owner = os.getpid()
        return self._process

    def stop(self) -> None:
        """Kill the interpreter if the current process has started it."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


def _start_context(preload: str) -> Any:
    """Return the multiprocessing context: a fork server if `preload` is given, else new interpreters.

    The fork server is used only on Linux without an NVIDIA GPU, because a process that has initialised
    CUDA cannot be forked.
    """
    if sys.platform != "linux" or not preload or _NVIDIA.exists():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([preload])  # has no effect once the server is running
    return context


@contextmanager
def _safe_path() -> Iterator[None]:
    """Set PYTHONSAFEPATH for interpreters that multiprocessing starts while the `with` block runs."""
    with _environment_lock:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread, and in processes and threads started while the `with` block runs."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(
    pipe: Connection,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
) -> None:
    """Run `target` in the child process, with the given environment and without interrupts (Ctrl-C)."""
    if hasattr(signal, "pthread_sigmask"):
        # a child of the server does not inherit the blocked signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    target(pipe, *arguments)


def _die_with_parent() -> None:
    """Wait until the parent process ends for any reason, then exit this process at once with code 1."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
