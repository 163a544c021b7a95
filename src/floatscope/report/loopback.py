"""Serve an ASGI application to this machine alone, by a server that no client can block or exhaust.

A request must be complete within `PATIENCE` seconds, however slowly it arrives; an answer must be read as it
is sent; the number of open connections is limited; a client that disconnects is no error. uvicorn does the
rest. Access control is in `guard`, and the answers are in the application.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 30.0  # seconds
MOST = 100  # connections; a browser opens six
_LONGEST = 1 << 16  # bytes of a request's line and headers
_LINGER = 2.0  # seconds, for a client that still sends after its last answer
_ENDING = 1  # seconds for answers that are under way when the server ends


class LoopbackServer:
    """A server that is bound when it is created; run `serve_forever` in one thread, `shutdown` in another."""

    has_lifespan = False  # the application is told of beginning and end
    answers_half_closed = True  # a client that has said all it wants to is still answered

    def __init__(self, port: int) -> None:
        self.most = MOST
        self.connection: type[Connection] = Connection
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(64)
        except OSError:
            self._socket.close()
            raise
        self.server_address: tuple[str, int] = self._socket.getsockname()
        self.server_port = self.server_address[1]
        self._server: uvicorn.Server | None = None
        self._over, self._asked = threading.Event(), False

    @property
    def app(self) -> Any:
        """The ASGI application."""
        raise TypeError(f"{type(self).__name__} must define app")

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    def serve_forever(self) -> None:
        """Serve until `shutdown`, or until Ctrl-C, SIGTERM or SIGHUP in the main thread.

        What a signal raises (KeyboardInterrupt, SystemExit) is raised after everything has ended.
        """
        config = uvicorn.Config(
            self.app,
            http=type("Connection", (self.connection,), {"owner": self}),
            ws="none",
            lifespan="on" if self.has_lifespan else "off",
            log_config=None,
            log_level="critical",  # what a person wants to know stands on the page
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(PATIENCE),
            timeout_graceful_shutdown=_ENDING,
            h11_max_incomplete_event_size=_LONGEST,
        )
        self._server = uvicorn.Server(config)
        if self._asked:
            self._server.should_exit = True
        try:
            with self._ended_by_signals():
                self._server.run([self._socket])
        finally:
            self._over.set()

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """Let Ctrl-C, SIGTERM and SIGHUP end the server at every moment of its run.

        uvicorn listens only from within its first coroutine to within its last. An earlier Ctrl-C would
        leave a coroutine that never started, and a later one would interrupt closing. Handlers of other
        programs and `nohup` stay in force.
        """
        caught: list[int] = []

        def hear(number: int, frame: object) -> None:
            caught.append(number)
            self._ask_to_end()

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

    def _ask_to_end(self) -> None:
        self._asked = True  # for a server that is not made yet
        if self._server is not None:
            self._server.should_exit = True

    def shutdown(self) -> None:
        """End `serve_forever`, and wait until it has ended."""
        self._ask_to_end()
        if self._server is not None:
            self._over.wait()

    def server_close(self) -> None:
        self._socket.close()


def _default_handlers() -> dict[int, Any]:
    """Return the signals that end a program and still have Python's default handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    default: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    default |= {getattr(signal, n): signal.SIG_DFL for n in names if hasattr(signal, n)}
    return {number: own for number, own in default.items() if signal.getsignal(number) == own}


class Connection(H11Protocol):
    """One connection, with a limit to every wait."""

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
        """Set a timer that closes the connection."""
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
        if self.owner.answers_half_closed and busy and not self.cycle.more_body:
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
        """Answer what is not HTTP with a complete response."""
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
