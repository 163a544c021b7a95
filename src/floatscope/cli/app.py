"""The command line's frame: the app, where it prints, and its options before any command."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer.core import TyperGroup

out, err = Console(), Console(stderr=True)


_AT_ONCE = (
    2.0  # seconds in which a second Ctrl-C is the first, which is still being cleaned up after
)


def say_interrupted(interrupt: KeyboardInterrupt) -> None:
    """What was kept and how to go on, if whoever was interrupted knows."""
    said = str(interrupt) or "interrupted; nothing was left half-written"
    err.print(escape(said), soft_wrap=True)


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Impatience must not cost the message; what hangs can still be interrupted, a little later."""
    last = float("-inf")

    def heard(number: int, frame: object) -> None:
        nonlocal last
        if time.monotonic() - last > _AT_ONCE:
            last = time.monotonic()
            raise KeyboardInterrupt

    alone = threading.current_thread() is threading.main_thread()
    # Where another handler is set, or none (in the background, after nohup), it stays.
    if not alone or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Commands(TyperGroup):
    """typer would end an interrupted command without a word of what it says."""

    def invoke(self, ctx: Any) -> Any:
        with _one_interrupt():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as interrupt:
                say_interrupted(interrupt)
                raise typer.Exit(130) from interrupt


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


def progress_bar(text: str) -> Progress:
    """On standard error, so that what a command prints can be piped."""
    # As text: a model's name may hold what a format string or markup would take for its own.
    return Progress(
        TextColumn(text.replace("{", "{{").replace("}", "}}"), markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
    )


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
