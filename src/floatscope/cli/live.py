"""The command `floatscope live`: serve the live page for one or more models."""

from typing import Annotated

import typer
from rich.markup import escape

from .app import Plugins, app, out


@app.command()
def live(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="As for `trace`; may be repeated. Default: the pair, and the twin where installed."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open a browser at the page.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    plugin: Plugins = None,
) -> None:
    """Decode prompts on a page, and edit them there.

    The page is served to this machine only. Ctrl-C ends it.

    \b
    Examples:
      floatscope live --open
      floatscope live --model ./LLaDA-8B-Instruct --model ./Llama-3.1-8B \\
          --device cuda
    """
    from ..livepage.serve import default_models, serve
    from ..registry import placed

    options = {"device": device, "plugins": [placed(p) for p in plugin or []]}
    serve(
        model or default_models(),
        port,
        options,
        open_browser=open_browser,
        say=lambda text: out.print(escape(text), soft_wrap=True),
    )
