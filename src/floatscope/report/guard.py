"""Protect a local server: restrict who may send requests, and what a browser may do with the answers.

The server answers only this machine, and only users who know its address. Requests with another Host header
are refused, so that no page of another site can read the server under another name. Paths begin with a random
key, so that other users of this machine cannot use the server. Requests that change something must be JSON,
and must come from one of the server's pages (Origin header).
"""

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .answers import Refused


class Guard:
    """An ASGI wrapper that refuses foreign requests.

    All other requests are passed to the application, without the key in their path.
    """

    def __init__(self, app: ASGIApp, key: str, port: int, policy: str) -> None:
        self.app, self.key = app, key.encode()
        ends = [f":{port}", *([""] if port == 80 else [])]
        self.hosts = [f"{name}{end}" for name in ("127.0.0.1", "localhost") for end in ends]
        self.headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        try:
            path = self._path_behind_key(scope)
        except Refused as refused:
            await refused.response(scope, receive, send_with_headers)
            return
        inside = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        await self.app(inside, receive, send_with_headers)

    def _path_behind_key(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        if not self._names_us(headers.getlist("host")):
            raise _forbidden("This address answers 127.0.0.1 and localhost alone.")
        raw = scope.get("raw_path") or scope["path"].encode()
        key, slash, path = raw.removeprefix(b"/").partition(b"/")
        if not slash or not hmac.compare_digest(key, self.key):
            raise _forbidden("Open the whole address that was printed, with its key.")
        if scope["method"] not in ("GET", "HEAD"):
            origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
            own = self._names_us(origins, "http://") if origins else set(sites) <= {"same-origin"}
            if not own:
                raise _forbidden("A page of another site may not ask for this.")
            kinds = [kind.split(";")[0].strip().lower() for kind in headers.getlist("content-type")]
            if kinds != ["application/json"]:
                raise Refused(415, "usage", "Send JSON, with content-type: application/json.")
        return f"/{path.decode('latin-1')}"

    def _names_us(self, values: list[str], scheme: str = "") -> bool:
        """Return whether a header occurs exactly once, with an address of this server as its value."""
        return len(values) == 1 and values[0] in [scheme + host for host in self.hosts]


def _forbidden(message: str) -> Refused:
    return Refused(403, "usage", message)


def own_page(sources: str, ancestors: str = "'none'") -> str:
    """Return a content security policy for a page that only sends requests to its own server.

    `sources` are the directives for styles, scripts and images; `ancestors` may embed the page in a frame.
    """
    return (
        f"default-src 'none'; {sources}; connect-src 'self'; frame-ancestors {ancestors}; "
        "base-uri 'none'; form-action 'none'"
    )
