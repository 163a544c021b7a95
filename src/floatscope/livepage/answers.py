"""Parts that all answers of the live page's server share: reading requests, streaming, errors.

Every error has a kind, a message and a remedy, and never a traceback.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import FloatscopeError
from .host import Refused
from .limits import LIMITS
from .messages import Message

M = TypeVar("M", bound=Message)


async def asked_of(request: Request, kind: type[M], most: int = LIMITS["body"]) -> M:
    """Read and check the JSON body of a request."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, "limit", f"the request has more than {most} bytes", "Send less.")
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        message = f"{where}: {said}" if where else said
        raise Refused(
            400,
            "usage",
            message,
            "Correct the request; docs/reference/live.md has its form.",
            where,
        ) from error


def told_of(error: FloatscopeError) -> dict[str, str]:
    """Return an error as the page gets it."""
    return {"kind": "usage", "message": error.what, "remedy": error.remedy}


def error_response(status: int, error: dict[str, str]) -> Response:
    return JSONResponse({"error": error}, status)


def route(path: str, answer: Callable[[Request], Awaitable[Response]], methods: list[str]) -> Route:
    """Return a route whose errors become answers."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as refused:
            return error_response(refused.status, refused.error)
        except KeyError as error:
            return error_response(404, _gone(str(error.args[0]) if error.args else ""))
        except FloatscopeError as error:
            return error_response(400, told_of(error))
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # a bug of ours: said, not shown
            told = {
                "kind": "internal",
                "message": f"{type(error).__name__}",
                "remedy": "Try again.",
            }
            return error_response(500, told)

    return Route(path, guarded, methods=methods)


def _gone(what: str) -> dict[str, str]:
    remedy = "Runs are kept until the server ends or makes room: see history. Reload the page."
    return {"kind": "gone", "message": f"there is no {what[:60]!r} here", "remedy": remedy}


async def http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    if status == 405:
        told = {
            "kind": "usage",
            "message": "this path has no such method",
            "remedy": "See docs/reference/live.md.",
        }
        return error_response(405, told)
    return error_response(404, _gone(request.url.path))


def number_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise KeyError(text)
    return int(text)


def download(content: bytes, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


class Stream(Response):
    """A response that sends lines as they come, until the last line or until the client disconnects."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        self.lines = lines
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self.lines) as lines:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def line_of(event: dict[str, Any]) -> bytes:
    return json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n"
