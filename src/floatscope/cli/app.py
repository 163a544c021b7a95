"""The command line's frame: the app, where it prints, and its options before any command."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .console import SafeConsole

out, err = SafeConsole(), SafeConsole(stderr=True)


class Interrupted(Exception):
    """Ctrl-C, with what to say of it: Typer would end the program without a word."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            message = str(interrupt) or "interrupted; nothing was left half-written"
            raise Interrupted(message) from None


app = typer.Typer(
    name="floatscope",
    cls=_Commands,
    help="An instrument for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        out.print(f"floatscope {version('floatscope')}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _load_plugins(names: list[str] | None) -> list[str] | None:
    from ..registry import load_plugin

    for name in names or []:
        load_plugin(name)
    return names


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        callback=_load_plugins,
        is_eager=True,
        help="Your own .py file or module, for what it registers; may be repeated.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(help="trained, or permuted with --seed: the same model with all it learnt gone."),
]
