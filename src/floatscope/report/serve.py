"""The viewer on loopback, for traces too many or too large for one file: scenes are read when asked for.

It answers this machine alone: it listens on 127.0.0.1 and refuses any other Host, so that no page of
another site can read it by renaming itself. It serves four kinds of paths and no files.
"""

import re
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..errors import FloatscopeError, UsageError
from .catalogue import Catalogue
from .embed import as_json, assets, page

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_SCENE = re.compile(r"/scene/([0-9a-z-]{1,64})(?:/heads/([0-9]{1,6}))?")
_LOCAL = ("127.0.0.1", "localhost")


@runtime_checkable
class Source(Protocol):
    """What can be served. Unknown ids and steps raise KeyError."""

    title: str

    def index(self) -> dict[str, Any]: ...
    def scene(self, scene_id: str) -> dict[str, Any]: ...
    def heads(self, scene_id: str, step: int) -> dict[str, Any]: ...


def serve(
    source: str | Path | Source,
    port: int = 0,
    *,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a directory of saved traces (or any Source) until Ctrl-C. Port 0 takes a free one."""
    server = make_server(source, port)
    try:
        say(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)")
        sys.stdout.flush()
        server.serve_forever()
    except KeyboardInterrupt:
        say("ended")
    finally:
        server.server_close()


def make_server(source: str | Path | Source, port: int = 0) -> ThreadingHTTPServer:
    """A server that is bound and not yet serving."""
    served = Catalogue.of(Path(source)) if isinstance(source, str | Path) else source

    class Handler(_Handler):
        pass

    Handler.source = served
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(
            f"port {port} is not available ({error.strerror})",
            "Choose another --port, or 0 for any.",
        ) from error
    Handler.port = server.server_port
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    source: Source
    port: int
    server_version = "floatscope"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._is_local():
            self._send(403, "text/plain", "This address answers 127.0.0.1 and localhost alone.")
            return
        try:
            kind, text = self._answer(self.path.partition("?")[0])
        except KeyError:
            self._send(404, "text/plain", "There is nothing here.")
        except FloatscopeError as error:
            self._send(500, "text/plain", str(error))
        except Exception as error:  # answered, not dropped
            self._send(500, "text/plain", f"{type(error).__name__}: {error}")
        else:
            self._send(200, kind, text)

    def _answer(self, path: str) -> tuple[str, str]:
        if path == "/":
            start = '<div id="viewer"></div><script>floatscopeServed("viewer");</script>'
            return "text/html", page(self.source.title, assets() + start, policy=None)
        if path == "/index":
            return "application/json", as_json(self.source.index() | {"keys": True})
        asked = _SCENE.fullmatch(path)
        if asked is None:
            raise KeyError(path)
        scene_id, step = asked.groups()
        content = (
            self.source.scene(scene_id) if step is None else self.source.heads(scene_id, int(step))
        )
        return "application/json", as_json(content)

    def _is_local(self) -> bool:
        """The Host a browser was told: another name that resolves to here is not us."""
        name, _, port = (self.headers.get("Host") or "").rpartition(":")
        return name in _LOCAL and port == str(self.port)

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: what a person wants to know stands on the page."""
