"""An HTTP server for this machine alone that no client can hold up, fill up, or make noisy.

A request must be read within `patience` seconds of its beginning, however slowly it drips in; only so
many connections are open at once; a client that goes away is no error. What is answered is in `serve`.
"""

import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 30.0  # seconds
_MOST = 100  # connections; a browser opens six
_LINGER = 2.0  # seconds, for a client that still sends after its answer
_PIECE = 1 << 16


class LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, handler: type["LoopbackHandler"]) -> None:
        self.patience = PATIENCE
        self._open: set[Any] = set()
        self._waiting: dict[Any, float] = {}  # connection → since when a request is awaited
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), handler)

    def awaits(self, connection: Any) -> None:
        with self._lock:
            self._waiting[connection] = time.monotonic()

    def has_read(self, connection: Any) -> None:
        with self._lock:
            self._waiting.pop(connection, None)

    def service_actions(self) -> None:
        """Called by `serve_forever` twice a second: no thread waits for a half request for ever."""
        super().service_actions()
        last = time.monotonic() - self.patience
        with self._lock:
            late = [connection for connection, since in self._waiting.items() if since < last]
            for connection in late:
                del self._waiting[connection]
        for connection in late:
            with suppress(OSError):  # it may have gone by itself
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            welcome = len(self._open) < _MOST
            if welcome:
                self._open.add(request)
        if welcome:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close it, once what the client still sends was read: otherwise TCP drops the answer's end."""
        self.has_read(request)
        last = time.monotonic() + _LINGER
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(_LINGER)
            while request.recv(_PIECE) and time.monotonic() < last:
                pass
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away, or waits too long
            super().handle_error(request, client_address)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Reads a request within the server's patience, and answers in whole responses."""

    server: LoopbackServer
    server_version = "floatscope"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # not 0.9, whose answers have no status
    timeout = PATIENCE  # of one read or write
    headers_of_all: tuple[tuple[str, str], ...] = ()

    def handle_one_request(self) -> None:
        self.server.awaits(self.connection)
        super().handle_one_request()

    def parse_request(self) -> bool:
        understood = super().parse_request()
        self.server.has_read(self.connection)
        if understood and not self.request_version.startswith("HTTP/1."):
            self.request_version = self.default_request_version
            self.send_error(505)
            return False
        if understood and {"content-length", "transfer-encoding"} & set(
            map(str.lower, self.headers)
        ):
            self.close_connection = True  # a body is not read, and is no next request
        return understood

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses, such as an unknown method."""
        self.close_connection = True
        self.answer(int(code), "text/plain", message or self.responses[code][0])

    def answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in self.headers_of_all:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for start in range(0, len(body), _PIECE):  # each in its own time: a tunnel may be slow
                self.wfile.write(body[start : start + _PIECE])

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: what a person wants to know stands on the page."""
