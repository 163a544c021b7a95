"""Serve scenes on this machine: the application of `floatscope view`, which the live page extends.

A source may contain more traces than fit into one file, because a scene is only read when it is requested.
Paths of requests never name files.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from .answers import http_error, number_of, route
from .catalogue import Catalogue
from .embed import as_json, assets, page
from .guard import own_page
from .loopback import LoopbackServer


@runtime_checkable
class Source(Protocol):
    """A source of scenes to serve. Unknown ids, steps, layers and heads raise KeyError."""

    @property
    def title(self) -> str: ...
    def index(self) -> dict[str, Any]: ...
    def scene(self, scene_id: str) -> dict[str, Any]: ...
    def heads(self, scene_id: str, step: int) -> dict[str, Any]: ...
    def head(self, scene_id: str, layer: int, head: int) -> dict[str, Any]: ...


class ScenePage:
    """The application that serves the page of a source, and the source's scenes as JSON."""

    policy = own_page("style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:")
    answers_half_closed = True

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asgi = Starlette(
            lifespan=self.lifespan,
            routes=[
                route("/", self.page),
                route("/index", self.index),
                route("/scene/{scene}", self.scene),
                route("/scene/{scene}/heads/{step}", self.heads),
                route("/scene/{scene}/head/{layer}/{head}", self.head),
                *self.more_routes(),
            ],
            exception_handlers={404: http_error, 405: http_error},
        )
        self.asgi.router.redirect_slashes = False

    def more_routes(self) -> Sequence[Route]:
        """Return further routes, for subclasses whose page does more than show scenes; () by default."""
        return ()

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None, None]:
        yield

    def close(self) -> None:
        """Release resources after the server has ended."""

    async def page(self, request: Request) -> Response:
        start = '<div id="viewer"></div><script>floatscopeServed("viewer");</script>'
        html = page(self.source.title, assets() + start, policy=None)
        return HTMLResponse(html.encode("utf-8", "backslashreplace"))

    async def index(self, request: Request) -> Response:
        return await _read(lambda: self.source.index() | {"keys": True}, request)

    async def scene(self, request: Request) -> Response:
        return await _read(self.source.scene, request)

    async def heads(self, request: Request) -> Response:
        return await _read(self.source.heads, request)

    async def head(self, request: Request) -> Response:
        return await _read(self.source.head, request)


async def _read(read: Callable[..., dict[str, Any]], request: Request) -> Response:
    """Call `read` with the scene id and the numbers in a request's path, and return the result as JSON.

    `read` runs in a thread, so that slow reads do not block the server.
    """
    names = list(request.path_params.values())
    arguments = [*names[:1], *map(number_of, names[1:])]
    text = await asyncio.to_thread(lambda: as_json(read(*arguments)))
    return Response(text, media_type="application/json")


def make_server(source: str | Path | Source, port: int = 0) -> LoopbackServer:
    """Create a server of a source or directory that is bound to a port; call `serve` on it to start."""
    served = Catalogue.of(Path(source)) if isinstance(source, str | Path) else source
    return LoopbackServer(ScenePage(served), port)


def serve(
    source: str | Path | Source, port: int = 0, *, say: Callable[[str], None] = print
) -> None:
    """Serve a directory of saved traces (or any Source) until Ctrl-C. Port 0 selects a free port."""
    make_server(source, port).serve(say)
