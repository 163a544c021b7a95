"""`floatscope live`: the page on loopback, with each model in its own process."""

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from ..errors import ModelError, UsageError
from ..models import twin
from ..models.spec import ModelSpec
from ..report.guard import Guard, own_page
from ..report.loopback import LoopbackServer
from . import browser
from .answers import error_response
from .app import LivePage
from .host import Crew, ModelHost
from .runs import Runs

_SOURCES = "script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"
_NOTEBOOK = "http://localhost:* http://127.0.0.1:*"
PAIR = ("pair/mdm", "pair/arm")


class LiveServer(LoopbackServer):
    """The server of the page with its key. A closed connection cancels its run."""

    has_lifespan = True
    answers_half_closed = False

    def __init__(self, page: LivePage, port: int) -> None:
        try:
            super().__init__(port)
        except OSError as error:
            raise UsageError(
                f"port {port} is not available ({error.strerror})",
                "Choose another --port, or 0 for any.",
            ) from error
        self.page, self.key = page, secrets.token_hex(16)
        policy = own_page(_SOURCES, _NOTEBOOK if page.notebook else "'none'")
        self._app = Guard(page.asgi, self.key, self.server_port, policy, _refused)

    @property
    def app(self) -> Any:
        return self._app

    @property
    def url(self) -> str:
        """The address of the page, with its key."""
        return f"http://127.0.0.1:{self.server_port}/{self.key}/"

    def server_close(self) -> None:
        super().server_close()
        self.page.runs.close()


def _refused(status: int, text: str) -> Response:
    return error_response(status, {"kind": "usage", "message": text, "remedy": ""})


def default_models() -> list[str]:
    """Return the embedded pair, and the twin if its base is installed."""
    names = list(PAIR)
    with suppress(ModelError):
        for name in ("twin/mdm", "twin/arm"):
            twin.locate(name)
            twin.adapter(name, None)
            names.append(name)
    return names


def make_server(
    models: Sequence[str], port: int = 0, options: dict[str, Any] | None = None
) -> LiveServer:
    """Create a server that is bound but not serving yet; specs that cannot be a model are refused."""
    for text in models:
        ModelSpec.of(text).require_there()
    crew = Crew()
    hosts = [
        ModelHost(f"m{i}", text, dict(options or {}), crew=crew) for i, text in enumerate(models)
    ]
    return LiveServer(LivePage(hosts, Runs("Floatscope live")), port)


def serve(
    models: Sequence[str],
    port: int = 0,
    options: dict[str, Any] | None = None,
    *,
    open_browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until Ctrl-C."""
    server = make_server(models, port, options)
    try:
        say(f"{server.url}  (Ctrl-C ends it)")
        if line := forwarding(server.server_port, os.environ):
            say(line)
        sys.stdout.flush()
        if open_browser:
            browser.open_browser(server.url, server.page.runs.folder)
        server.serve_forever()
    except KeyboardInterrupt:
        say("ended")
    finally:
        server.server_close()


def forwarding(port: int, environment: Any) -> str:
    """Return the command to type on the user's machine if this one is reached by SSH; "" otherwise."""
    parts = str(environment.get("SSH_CONNECTION", "")).split()
    if len(parts) != 4:
        return ""
    user = environment.get("USER", "")
    where = f"{user}@{parts[2]}" if user else parts[2]
    port_flag = f" -p {parts[3]}" if parts[3] != "22" else ""
    return f"From your own machine: ssh -N -L {port}:127.0.0.1:{port}{port_flag} {where}"
