"""Serve the live page on loopback, with each model in its own process (`floatscope live`)."""

import html
import os
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..errors import ModelError
from ..models import twin
from ..models.pair import PAIR
from ..models.spec import ModelSpec
from ..report.loopback import LoopbackServer
from .app import LivePage
from .host import ModelHost, ModelHosts
from .runs import Runs
from .scratch import REDIRECT


def default_models() -> list[str]:
    """Return the names of the embedded pair, and of the twin if its base is installed."""
    names = list(PAIR)
    with suppress(ModelError):
        for name in ("twin/mdm", "twin/arm"):
            twin.locate(name)
            twin.adapter(name, None)
            names.append(name)
    return names


def make_server(
    models: Sequence[str], port: int = 0, options: dict[str, Any] | None = None
) -> LoopbackServer:
    """Return a server that is bound but not serving yet; raise an error for a spec without a model."""
    for text in models:
        ModelSpec.from_value(text).require_there()
    crew = ModelHosts()
    hosts = [
        ModelHost(f"m{i}", text, dict(options or {}), crew=crew) for i, text in enumerate(models)
    ]
    return LoopbackServer(LivePage(hosts, Runs("Floatscope live")), port)


def serve(
    models: Sequence[str],
    port: int = 0,
    options: dict[str, Any] | None = None,
    *,
    open_browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the live page for the models until Ctrl-C; `say` prints the page's address."""
    server = make_server(models, port, options)

    def open_page() -> None:
        if open_browser:
            open_redirect(server.url, server.page.runs.folder)

    server.serve(say, open_page)


def open_redirect(url: str, folder: Path) -> None:
    """Open a browser at an address that contains a secret key, by means of a private file.

    Every user of a machine can read the command lines of its processes. The browser is therefore given a file
    that only this user can read, and the file redirects it to the address.
    """
    file = folder / REDIRECT
    page = Template(files(__package__).joinpath("assets", "redirect.html").read_text("utf-8"))
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8") as out:
        out.write(page.substitute(url=html.escape(url)))
    webbrowser.open(file.as_uri())
