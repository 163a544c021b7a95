"""Define the app of the command line, its consoles, its errors, and options that several commands share."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from ..errors import FloatscopeError
from .console import SafeConsole

out, err = SafeConsole(), SafeConsole(stderr=True)


class Interrupted(Exception):
    """Raised after Ctrl-C, with a message to print, because Typer prints no message."""


_VALUES = {"str": "TEXT", "list[str]": "TEXT", "int": "N", "float": "X", "Path": "PATH"}


class _Commands(TyperGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name; its help shows the type of each option's value."""
        command = super().get_command(ctx, cmd_name)
        for option in command.params if command else []:
            if isinstance(option, TyperOption) and option.metavar is None:
                option.metavar = _VALUES.get(option.bare_type())
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            message = str(interrupt) or "interrupted; no file was left incomplete"
            raise Interrupted(message) from None
        except Exception as error:
            option = str(getattr(error, "option_name", ""))
            if place := _place_of(option.lstrip("-").replace("-", "_")):
                raise WrongOption(f"no option {option:.80}", place) from error
            raise


def _place_of(setting: str) -> str:
    """Return a remedy: where to write a setting that is not an option; "" for an unknown setting."""
    from ..models.spec import ModelSpec
    from .engines import ENGINES
    from .outlines import common_fields

    if setting in (field.name for field in fields(ModelSpec)):
        return f"It is a setting of the model: --model MODEL,{setting}=VALUE."
    if setting in common_fields():
        return f"It is a setting of the sampler: --sampler SAMPLER,{setting}=VALUE."
    if setting in ENGINES["ray"]:
        return f"It is a setting of the engine: --engine ENGINE,{setting}=VALUE."
    return ""


app = typer.Typer(
    name="floatscope",
    cls=_Commands,
    help="An instrument for attention in masked diffusion language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(requested: bool) -> bool:
    if requested:
        from importlib.metadata import version

        out.print(f"floatscope {version('floatscope')}")
        raise typer.Exit
    return requested


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


class WrongOption(FloatscopeError):
    """Raised for an unknown option that is in fact a setting of another option, such as --model."""

    exit_code = 2


class WrongOutput(FloatscopeError):
    """Raised for an output path that cannot be written; Typer would replace a ValueError's message."""

    exit_code = 2


_NAME, _PATH = 200, 3800  # bytes; systems allow 255 and 4,096, and partial files have longer names


def output_path(text: str | Path) -> Path:
    """Parse the path of an output; raise WrongOutput if it is empty or too long for a file system."""
    if not str(text).strip():
        raise WrongOutput(
            "--out is empty", "Name a file or a directory; `.` is the working directory."
        )
    path = Path(text)
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    path_bytes = len(os.fsencode(Path.cwd() / path))
    if longest > _NAME or path_bytes > _PATH:
        raise WrongOutput(
            f"--out {str(path)[:60]}… is too long: a name in it has {longest:,} bytes, and the path "
            f"{path_bytes:,}",
            f"Choose names of at most {_NAME} bytes, and a path of at most {_PATH:,}.",
        )
    return path


def output_option(flag: str, help: str) -> Any:
    """Return a Typer option called `flag` for the path of an output."""
    return typer.Option(flag, parser=output_path, metavar="PATH", help=help)


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
        help="A .py file or module with your own measures, samplers …; may be repeated.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(help="trained, or permuted with --seed: an untrained control of the same model."),
]
