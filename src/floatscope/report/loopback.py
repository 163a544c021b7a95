"""Serve an ASGI application to this machine only, with limits so that no client can block the server.

A request must arrive completely within `PATIENCE` seconds, and a client that stops reading an answer is
disconnected after the same time. At most `MOST` connections are open at once. A client that disconnects is
not an error. uvicorn implements the HTTP protocol. `guard` decides who may send requests, and the application
answers the requests.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UsageError
from .guard import Guard

PATIENCE = 30.0  # seconds
MOST = 100  # connections; a browser opens six
_LINGER = 2.0  # seconds, for a client that still sends after its last answer
_ENDING = 1  # seconds for answers that are under way when the server ends


@runtime_checkable
class Page(Protocol):
    """A page to serve: its ASGI application, and its content security policy.

    `answers_half_closed` says whether a client that has closed its sending side still gets its answer.
    """

    asgi: Starlette
    policy: str
    answers_half_closed: bool

    def close(self) -> None: ...


class LoopbackServer:
    """A server bound to a port on creation; call `serve_forever` in one thread and `shutdown` in another."""

    def __init__(self, page: Page, port: int = 0) -> None:
        try:
            self._socket = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} is not available ({error.strerror})",
                "Choose another --port, or 0 for any.",
            ) from error
        self.server_address: tuple[str, int] = self._socket.getsockname()
        self.server_port = self.server_address[1]
        self.page: Any = page
        self.key = secrets.token_hex(16)
        self.app = Guard(page.asgi, self.key, self.server_port, page.policy)
        self.most = MOST
        self.connection: type[Connection] = Connection
        config = uvicorn.Config(
            self.app,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="critical",  # what a person wants to know stands on the page
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(PATIENCE),
            timeout_graceful_shutdown=_ENDING,
        )
        self._server = uvicorn.Server(config)
        self._serving = threading.Lock()

    @property
    def url(self) -> str:
        """Address of the page, which contains the random key."""
        return f"http://127.0.0.1:{self.server_port}/{self.key}/"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    def serve(
        self, say: Callable[[str], None] = print, open_page: Callable[[], None] = lambda: None
    ) -> None:
        """Print the address with `say`, open the page, serve until Ctrl-C, and close the server."""
        try:
            say(f"{self.url}  (Ctrl-C ends it)")
            if line := forwarding(self.server_port, os.environ):
                say(line)
            sys.stdout.flush()
            open_page()
            self.serve_forever()
        except KeyboardInterrupt:
            say("ended")
        finally:
            self.server_close()

    def serve_forever(self) -> None:
        """Serve until `shutdown`, or until Ctrl-C, SIGTERM or SIGHUP in the main thread.

        The exception of a signal (KeyboardInterrupt or SystemExit) is raised after the server has ended.
        """
        self._server.config.http = type("Connection", (self.connection,), {"owner": self})
        with self._serving, self._ended_by_signals():
            self._server.run([self._socket])

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and SIGHUP end the server cleanly at any moment while the `with` block runs.

        uvicorn handles signals only while its coroutines run. A Ctrl-C before this time would leave a
        coroutine that was never started, and a Ctrl-C after this time would interrupt the closing of the
        server. Handlers that other programs or code have set, for example `nohup`, are not replaced.
        """
        caught: list[int] = []

        def hear(number: int, frame: object) -> None:
            caught.append(number)
            self._server.should_exit = True

        replaced = _default_handlers()
        for number in replaced:
            signal.signal(number, hear)
        try:
            yield
        finally:
            for number, handler in replaced.items():
                signal.signal(number, handler)
        if signal.SIGINT in caught:
            raise KeyboardInterrupt
        if caught:
            raise SystemExit(128 + caught[0])

    def shutdown(self) -> None:
        """End `serve_forever`, and wait until it has ended."""
        self._server.should_exit = True
        with self._serving:
            pass

    def server_close(self) -> None:
        self._socket.close()
        self.page.close()


def forwarding(port: int, environment: Mapping[str, str]) -> str:
    """Return the SSH command that forwards the port to the user's own machine; "" without an SSH session."""
    parts = environment.get("SSH_CONNECTION", "").split()
    if len(parts) != 4:
        return ""
    user = environment.get("USER", "")
    where = f"{user}@{parts[2]}" if user else parts[2]
    port_flag = f" -p {parts[3]}" if parts[3] != "22" else ""
    return f"From your own machine: ssh -N -L {port}:127.0.0.1:{port}{port_flag} {where}"


def _default_handlers() -> dict[int, Any]:
    """Return the signals that end a program and still have their default handlers, with these handlers.

    Return {} outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    default: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    default |= {getattr(signal, n): signal.SIG_DFL for n in names if hasattr(signal, n)}
    return {number: own for number, own in default.items() if signal.getsignal(number) == own}


class Connection(H11Protocol):
    """A connection to a client, in which every wait has a time limit."""

    owner: LoopbackServer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._ended = False
        if len(self.connections) > self.owner.most:
            transport.abort()
            return
        self._awaits()

    def _awaits(self) -> None:
        self._has_read()
        self._reading = self.cut_after(PATIENCE)

    def cut_after(self, seconds: float) -> asyncio.TimerHandle:
        """Start and return a timer that aborts the connection after this many seconds."""
        return self.loop.call_later(seconds, self.transport.abort)

    def _has_read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self._has_read()

    def on_response_complete(self) -> None:
        self._awaits()
        super().on_response_complete()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        busy = self.cycle is not None and not self.cycle.response_complete
        if self.owner.page.answers_half_closed and busy and not self.cycle.more_body:
            self.cycle.keep_alive = False
            return True
        return None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.cut_after(PATIENCE)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_read()
        if self._writing is not None:
            self._writing.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Send a complete error response to a client whose request is not valid HTTP."""
        body = msg.encode("ascii")
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        # What the client still sends is read and dropped for a while: TCP would drop the answer's end.
        self._ended = True
        self._has_read()
        self._reading = self.cut_after(_LINGER)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        if not self._ended:
            super().data_received(data)
