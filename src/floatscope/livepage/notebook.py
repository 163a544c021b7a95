"""Show the live page in a notebook's cell, with models that the notebook has loaded (`fs.live`).

The server and the models run in threads of the process of the notebook. A run that hangs can therefore be
ended only by ending the notebook. While the page uses a model, calls of the model in other cells wait; while
another cell uses the model, the page waits.
"""

import html
import threading
from typing import Any

from ..errors import UsageError
from ..models.pair import PAIR
from ..report.loopback import LoopbackServer
from .app import LivePage
from .host import ModelHost, ModelHosts
from .prompts import PLAIN, WORLD
from .runs import Runs
from .worker import worker_thread


class Live:
    """A running live page, which a notebook displays in a frame. `close()` ends the server."""

    def __init__(self, server: LoopbackServer, height: int) -> None:
        self._server, self.url, self.height = server, server.url, height
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server and remove its runs; the model stays loaded."""
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
    """Start the live page with loaded models, to type a prompt, watch its decoding, and edit the decoding.

    Only this machine can open the page. To open the page from another machine, forward the port.

    Args:
        models (Model): One or more loaded models; one prompt can be given to several of them.
        port (int): Port of the server; 0 (by default) selects a free port.
        height (int): Height of the frame in pixels; 900 by default.

    Returns:
        An object with the address `url` and the method `close()`. The object shows the page if it is the last
        line of a cell.
    """
    from ..instrument import Model

    if not models or not all(isinstance(model, Model) for model in models):
        raise UsageError(
            f"live takes loaded models, got {models!r:.80}",
            "Give one or more: fs.live(fs.load(…)).",
        )
    crew = ModelHosts()
    hosts = [loaded(f"m{i}", model, crew) for i, model in enumerate(models)]
    page = LivePage(hosts, Runs("Floatscope live"), notebook=True)
    return Live(LoopbackServer(page, port), height)


def loaded(model_id: str, model: Any, crew: ModelHosts) -> ModelHost:
    """Return a host that runs jobs of a loaded model in a thread of this process."""
    layout = WORLD if model.name in PAIR else PLAIN
    return ModelHost(
        model_id, str(model.name), {}, crew=crew, make_worker=lambda: worker_thread(model, layout)
    )
