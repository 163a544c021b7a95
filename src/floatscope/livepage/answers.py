"""Read requests to the live page's server, and send files and streams in response."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from ..report.answers import Refused, route
from .limits import LIMITS
from .messages import Message

M = TypeVar("M", bound=Message)


async def _message(request: Request, kind: type[M], most: int) -> M:
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
        reason = first["msg"].removeprefix("Value error, ")
        message = f"{where}: {reason}" if where else reason
        raise Refused(
            400,
            "usage",
            message,
            "Correct the request; docs/reference/live.md has its form.",
            where,
        ) from error


def posted(
    path: str, kind: type[M], answer: Callable[[M], Awaitable[Any]], most: int = LIMITS["body"]
) -> Route:
    """Return a POST route that parses a message of at most `most` bytes and passes it to `answer`."""

    async def read(request: Request) -> Any:
        return await answer(await _message(request, kind, most))

    return route(path, read, "POST")


def download(content: bytes, kind: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


class Stream(StreamingResponse):
    """A response that sends lines as they are generated.

    The response ends after the last line, or when the client disconnects. The generator that yields the lines
    is then closed.
    """

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines)
        self.lines = lines

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.lines):
            await super().stream_response(send)


def line_of(event: dict[str, Any]) -> bytes:
    return json.dumps(event, allow_nan=False, separators=(",", ":")).encode() + b"\n"
