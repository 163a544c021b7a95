"""The viewer on loopback, for traces too many or too large for one file: scenes are read when asked for.

It answers this machine alone, and there only who has its address: it listens on 127.0.0.1, refuses any
other Host, so that no page of another site can read it by renaming itself, and its paths begin with a
random key, so that no other user of this machine can. It serves five kinds of paths and no files.
"""

import hmac
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..errors import FloatscopeError, UsageError
from .catalogue import Catalogue
from .embed import as_json, assets, page
from .loopback import LoopbackHandler, LoopbackServer

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_ID = r"scene/([0-9a-z-]{1,64})"
_SCENE = re.compile(_ID)
_HEADS = re.compile(_ID + r"/heads/([0-9]{1,6})")  # all heads at a step
_HEAD = re.compile(_ID + r"/head/([0-9]{1,6})/([0-9]{1,6})")  # a layer's head at all steps
_LOCAL = ("127.0.0.1", "localhost")


@runtime_checkable
class Source(Protocol):
    """What can be served. Unknown ids, steps, layers and heads raise KeyError."""

    title: str

    def index(self) -> dict[str, Any]: ...
    def scene(self, scene_id: str) -> dict[str, Any]: ...
    def heads(self, scene_id: str, step: int) -> dict[str, Any]: ...
    def head(self, scene_id: str, layer: int, head: int) -> dict[str, Any]: ...


def serve(
    source: str | Path | Source,
    port: int = 0,
    *,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a directory of saved traces (or any Source) until Ctrl-C. Port 0 takes a free one."""
    server = make_server(source, port)
    try:
        say(f"{server.url}  (Ctrl-C ends it)")
        sys.stdout.flush()
        server.serve_forever()
    except KeyboardInterrupt:
        say("ended")
    finally:
        server.server_close()


class Server(LoopbackServer):
    """A server with the source it shows and the key to it."""

    def __init__(self, source: Source, port: int) -> None:
        self.source, self.key = source, secrets.token_hex(16)
        super().__init__(port, _Handler)

    @property
    def url(self) -> str:
        """The address of the page, with its key."""
        return f"http://127.0.0.1:{self.server_port}/{self.key}/"


def make_server(source: str | Path | Source, port: int = 0) -> Server:
    """A server that is bound and not yet serving; its `url` is the page's address."""
    served = Catalogue.of(Path(source)) if isinstance(source, str | Path) else source
    try:
        return Server(served, port)
    except OSError as error:
        raise UsageError(
            f"port {port} is not available ({error.strerror})",
            "Choose another --port, or 0 for any.",
        ) from error


class _Handler(LoopbackHandler):
    server: Server
    headers_of_all = (
        ("Content-Security-Policy", _POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
    )

    def do_GET(self) -> None:
        if not self._is_local():
            self.answer(403, "text/plain", "This address answers 127.0.0.1 and localhost alone.")
            return
        key, slash, path = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(key.encode(), self.server.key.encode()):
            self.answer(403, "text/plain", "Open the whole address that was printed, with its key.")
            return
        try:
            kind, text = self._content(path)
        except KeyError:
            self.answer(404, "text/plain", "There is nothing here.")
        except FloatscopeError as error:
            self.answer(500, "text/plain", str(error))
        except Exception as error:  # answered, not dropped
            self.answer(500, "text/plain", f"{type(error).__name__}: {error}")
        else:
            self.answer(200, kind, text)

    def _content(self, path: str) -> tuple[str, str]:
        source = self.server.source
        if not path:
            start = '<div id="viewer"></div><script>floatscopeServed("viewer");</script>'
            return "text/html", page(source.title, assets() + start, policy=None)
        if path == "index":
            return "application/json", as_json(source.index() | {"keys": True})
        return "application/json", as_json(self._data(source, path))

    def _data(self, source: Source, path: str) -> dict[str, Any]:
        if asked := _SCENE.fullmatch(path):
            return source.scene(asked[1])
        if asked := _HEADS.fullmatch(path):
            return source.heads(asked[1], int(asked[2]))
        if asked := _HEAD.fullmatch(path):
            return source.head(asked[1], int(asked[2]), int(asked[3]))
        raise KeyError(path)

    def _is_local(self) -> bool:
        """The Host a browser was told: another name that resolves to here is not us."""
        hosts = self.headers.get_all("Host", [])
        name, _, port = hosts[0].rpartition(":") if len(hosts) == 1 else ("", "", "")
        return name in _LOCAL and port == str(self.server.server_port)
