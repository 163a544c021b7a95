"""Answer HTTP requests with JSON.

The JSON of an error has a kind, a message and a remedy, and never a traceback.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import FloatscopeError

Error = dict[str, str]
_REFERENCE = "See docs/reference/live.md."


class Refused(Exception):
    """The error for a refused request, with its HTTP status and the JSON that the page shows."""

    def __init__(
        self, status: int, kind: str, message: str, remedy: str = "", field: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error: Error = {"kind": kind, "message": message, "remedy": remedy}
        if field:
            self.error["field"] = field

    @property
    def response(self) -> Response:
        return JSONResponse({"error": self.error}, self.status)


def refused(error: Exception) -> Refused:
    """Return the refusal that reports an exception to the client."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, FloatscopeError):
        return Refused(400, "usage", error.problem, error.remedy)
    if isinstance(error, KeyError):
        return _not_found(str(error.args[0]) if error.args else "")
    return Refused(500, "internal", type(error).__name__, "Try again.")


def _not_found(what: str) -> Refused:
    remedy = "Reload the page. Runs of a live page are kept until the server ends or makes room: see history."
    return Refused(404, "gone", f"there is no {what[:60]!r} here", remedy)


async def http_error(request: Request, error: Exception) -> Response:
    """Return the answer to a request whose path or method has no route."""
    if getattr(error, "status_code", 404) == 405:
        return Refused(405, "usage", "this path has no such method", _REFERENCE).response
    return _not_found(request.url.path).response


def route(path: str, answer: Callable[[Request], Awaitable[Any]], method: str = "GET") -> Route:
    """Return a route that answers errors as JSON, and converts results other than responses to JSON."""

    async def guarded(request: Request) -> Response:
        try:
            made = await answer(request)
            return made if isinstance(made, Response) else JSONResponse(made)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return refused(error).response

    return Route(path, guarded, methods=[method])


def number_of(text: str) -> int:
    """Return the index of a step, layer or head in a path; raise KeyError if it is not a number."""
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise KeyError(text)
    return int(text)
