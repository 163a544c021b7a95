"""Serve the viewer on loopback, for traces too many or too large for one file: scenes are read on request.

It serves five kinds of paths and no files, only to those who know its address (`guard`), and no client can
block it (`loopback`).
"""

import asyncio
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import FloatscopeError, UsageError
from .catalogue import Catalogue
from .embed import as_json, assets, page
from .guard import Guard, in_words, own_page
from .loopback import LoopbackServer

_POLICY = own_page("style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:")
_ID = r"/scene/([0-9a-z-]{1,64})"
_SCENE = re.compile(_ID)
_HEADS = re.compile(_ID + r"/heads/([0-9]{1,6})")  # all heads at a step
_HEAD = re.compile(_ID + r"/head/([0-9]{1,6})/([0-9]{1,6})")  # a layer's head at all steps


@runtime_checkable
class Source(Protocol):
    """A source of scenes to serve. Unknown ids, steps, layers and heads raise KeyError."""

    @property
    def title(self) -> str: ...
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
    """Serve a directory of saved traces (or any Source) until Ctrl-C. Port 0 selects a free port."""
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
    """A server with its source and its key."""

    def __init__(self, source: Source, port: int) -> None:
        super().__init__(port)
        self.source, self.key = source, secrets.token_hex(16)

    @property
    def app(self) -> Any:
        return Guard(self._answer, self.key, self.server_port, _POLICY)

    @property
    def url(self) -> str:
        """The address of the page, with its key."""
        return f"http://127.0.0.1:{self.server_port}/{self.key}/"

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if request.method not in ("GET", "HEAD"):
            answer = in_words(405, "There is nothing here but to be read.")
        else:
            answer = await asyncio.to_thread(self._response, scope["path"])
        await answer(scope, receive, send)

    def _response(self, path: str) -> Response:
        try:
            kind, text = self._content(path)
        except KeyError:
            return in_words(404, "There is nothing here.")
        except FloatscopeError as error:
            return in_words(500, str(error))
        except Exception as error:  # answered, not dropped
            return in_words(500, f"{type(error).__name__}: {error}")
        return Response(text.encode("utf-8", "backslashreplace"), media_type=kind)

    def _content(self, path: str) -> tuple[str, str]:
        source = self.source
        if path == "/":
            start = '<div id="viewer"></div><script>floatscopeServed("viewer");</script>'
            return "text/html", page(source.title, assets() + start, policy=None)
        if path == "/index":
            return "application/json", as_json(source.index() | {"keys": True})
        return "application/json", as_json(self._data(path))

    def _data(self, path: str) -> dict[str, Any]:
        source = self.source
        if asked := _SCENE.fullmatch(path):
            return source.scene(asked[1])
        if asked := _HEADS.fullmatch(path):
            return source.heads(asked[1], int(asked[2]))
        if asked := _HEAD.fullmatch(path):
            return source.head(asked[1], int(asked[2]), int(asked[3]))
        raise KeyError(path)


def make_server(source: str | Path | Source, port: int = 0) -> Server:
    """Create a server that is bound but not serving yet; its `url` is the page's address."""
    served = Catalogue.of(Path(source)) if isinstance(source, str | Path) else source
    try:
        return Server(served, port)
    except OSError as error:
        raise UsageError(
            f"port {port} is not available ({error.strerror})",
            "Choose another --port, or 0 for any.",
        ) from error
