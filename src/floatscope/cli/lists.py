"""What there is: measures, model families, samplers, interventions, tasks."""

from dataclasses import fields

from rich.markup import escape
from rich.table import Table

from .app import app, out


@app.command()
def measures() -> None:
    """List the measures: what each asks of a trace."""
    from ..measures import MEASURES

    table = Table(title="Measures", title_justify="left")
    for column in ("measure", "what it says", "options"):
        table.add_column(column)
    for name, cls in MEASURES.items():
        own = [f.name for f in fields(cls)]
        table.add_row(name, escape((cls.__doc__ or "").strip().splitlines()[0]), ", ".join(own))
    out.print(table)


@app.command()
def models() -> None:
    """List the model families that can be loaded, and the samplers that decode them."""
    from ..decode import SAMPLERS
    from ..models import FAMILIES, PAIR

    table = Table(title="Model families", title_justify="left")
    for name in ("family", "architecture", "attention", "row that predicts i", "for example"):
        table.add_column(name)
    for family in FAMILIES:
        row = "i" if family.shift == 0 else f"i − {family.shift}"
        names = ", ".join(family.architectures)
        table.add_row(family.name, names, str(family.direction), row, family.examples)
    out.print(table)
    table = Table(title="Embedded models: no GPU, no download", title_justify="left")
    table.add_column("name")
    table.add_column("what")
    for name, what in PAIR.items():
        table.add_row(name, what)
    out.print(table)
    table = Table(title="Samplers", title_justify="left")
    for name in ("sampler", "rule", "options beside the common ones"):
        table.add_column(name)
    common = {"length", "steps", "block_length", "temperature", "cfg", "seed", "stop_at_eos"}
    for name, cls in SAMPLERS.items():
        own = [f"{f.name}={f.default}" for f in fields(cls) if f.name not in common]
        rule = (cls.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, escape(rule), escape(", ".join(own)))
    out.print(table)


@app.command()
def interventions() -> None:
    """List the interventions, and how to write one after `--intervene`."""
    from ..interventions import INTERVENTIONS

    table = Table(title="Interventions", title_justify="left")
    for column in ("intervention", "what it does", "options"):
        table.add_column(column)
    for name, cls in INTERVENTIONS.items():
        own = [f"{f.name}={f.default}" for f in fields(cls)]
        rule = (cls.__doc__ or "").strip().splitlines()[0]
        table.add_row(name, escape(rule), escape(", ".join(own)))
    out.print(table)
    out.print(
        "For example: --intervene mask-columns:k=5,rule=excess(3),layers=0:4 "
        "--intervene mask-columns:k=5,control=random",
        markup=False,
    )
