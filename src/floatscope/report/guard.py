"""Protect a server on this machine: who may send requests, and what a browser may do with the answers.

It answers only this machine, and only users who know its address. Any other Host is refused, so that no page
of another site can read it under another name. Paths begin with a random key, so that no other user of this
machine can use it. Changes must come from one of its pages (Origin), as JSON.
"""

import hmac
from collections.abc import Callable

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL = ("127.0.0.1", "localhost")
Refuse = Callable[[int, str], Response]


def in_words(status: int, text: str) -> Response:
    """Refuse a request with plain text."""
    return PlainTextResponse(text, status)


class Guard:
    """Wraps an application, which gets the path after the key, unchanged."""

    def __init__(
        self, app: ASGIApp, key: str, port: int, policy: str, refuse: Refuse = in_words
    ) -> None:
        self.app, self.key, self.refuse = app, key.encode(), refuse
        ends = [f":{port}", *([""] if port == 80 else [])]
        self.own = {f"{name}{end}".encode() for name in _LOCAL for end in ends}
        self.headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *self.headers]}
            await send(message)

        refused, path = self._judge(scope)
        if refused is not None:
            await refused(scope, receive, headed)
            return
        inside = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode(), "root_path": ""}
        await self.app(inside, receive, headed)

    def _judge(self, scope: Scope) -> tuple[Response | None, str]:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if not self._is_us(headers.get(b"host", []), b""):
            return self.refuse(403, "This address answers 127.0.0.1 and localhost alone."), ""
        raw = scope.get("raw_path") or scope["path"].encode()
        key, slash, path = raw.removeprefix(b"/").partition(b"/")
        if not slash or not hmac.compare_digest(key, self.key):
            return self.refuse(403, "Open the whole address that was printed, with its key."), ""
        if scope["method"] not in ("GET", "HEAD"):
            origins, sites = headers.get(b"origin", []), headers.get(b"sec-fetch-site", [])
            own = self._is_us(origins, b"http://") if origins else set(sites) <= {b"same-origin"}
            if not own:
                return self.refuse(403, "A page of another site may not ask for this."), ""
            kinds = headers.get(b"content-type", [b""])
            if kinds[0].split(b";")[0].strip().lower() != b"application/json" or len(kinds) > 1:
                return self.refuse(415, "Send JSON, with content-type: application/json."), ""
        return None, path.decode("latin-1")

    def _is_us(self, values: list[bytes], scheme: bytes) -> bool:
        """Return whether there is exactly one such header and it names this address."""
        return len(values) == 1 and any(values[0] == scheme + own for own in self.own)


def own_page(sources: str, ancestors: str = "'none'") -> str:
    """Write a content security policy for a page that only sends requests to its own server."""
    return (
        f"default-src 'none'; {sources}; connect-src 'self'; frame-ancestors {ancestors}; "
        "base-uri 'none'; form-action 'none'"
    )
