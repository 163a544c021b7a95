"""`fs.live(model)`: the live page in a notebook's cell, with the model that is loaded there.

The server runs in a thread of this process, and so does the model: a run that hangs cannot be ended without
the notebook. Calls of the model in other cells wait while the page uses it, and the page while they do.
"""

import html
import threading
from typing import Any

from ..errors import UsageError
from ..models.pair import PAIR
from ..report.loopback import LoopbackServer
from .app import LivePage
from .host import Crew, ModelHost
from .prompts import PLAIN, WORLD
from .runs import Runs
from .worker import worker_thread


class Live:
    """A live page; in a notebook it shows itself. `close()` ends it."""

    def __init__(self, server: LoopbackServer, height: int) -> None:
        self._server, self.url, self.height = server, server.url, height
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server; its runs are gone, the model stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<floatscope.live {self.url}>"

    def _repr_html_(self) -> str:
        where = html.escape(self.url, quote=True)
        return (
            f'<iframe title="Floatscope live" src="{where}" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
            f'<p><a href="{where}" target="_blank" rel="noreferrer">{where}</a></p>'
        )


def live(*models: Any, port: int = 0, height: int = 900) -> Live:
    """The live page with loaded models behind it: type a prompt, watch it being decoded, touch it.

    Returns an object with `.url` and `.close()` that shows the page as a cell's last line. It answers this
    machine alone; from another, forward its port.

    Args:
        models: of `load`; several can be asked side by side.
        port: 0 takes a free one.
        height: of the frame, in pixels.
    """
    from ..instrument import Model

    if not models or not all(isinstance(model, Model) for model in models):
        raise UsageError(
            f"live takes loaded models, got {models!r:.80}",
            "Give one or more: fs.live(fs.load(…)).",
        )
    crew = Crew()
    hosts = [loaded(f"m{i}", model, crew) for i, model in enumerate(models)]
    page = LivePage(hosts, Runs("Floatscope live"), notebook=True)
    return Live(LoopbackServer(page, port), height)


def loaded(model_id: str, model: Any, crew: Crew) -> ModelHost:
    """A model of this process behind a page."""
    layout = WORLD if model.name in PAIR else PLAIN
    return ModelHost(
        model_id, str(model.name), {}, crew=crew, make_worker=lambda: worker_thread(model, layout)
    )
