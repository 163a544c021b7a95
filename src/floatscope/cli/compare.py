"""`floatscope compare`: the claims of several runs side by side, and their mean over enough models."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from .app import Plugins, app, err, out, output_option
from .progress import Display

if TYPE_CHECKING:
    from ..studies.comparison import ClaimComparison

# of the CSV file: one row per unit, then one for the mean
_COLUMNS = "claim text name value low high level n unit delta verdict tau i2 scope".split()


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(help="Finished runs.")],
    claim: Annotated[
        list[str] | None, typer.Option(help="Only this claim: 3, 9a …; may be repeated.")
    ] = None,
    json_file: Annotated[
        Path | None, output_option("--json", help="Write everything to this JSON file.")
    ] = None,
    csv_file: Annotated[
        Path | None, output_option("--csv", help="Write a row per claim and unit to this CSV file.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Compare the claims of several runs.

    With five or more models or trainings, a claim is decided for their mean; with fewer nothing is
    decided. A unit is a run, or an extra run in its directory.
    """
    from .. import atomic
    from ..stats.digits import digits
    from ..studies.claim import format_number
    from ..studies.comparison import LEAST_UNITS, compare
    from ..studies.results import finite

    if len(directories) < 2:
        raise UsageError("expected two or more runs, got one", "Name two or more.")
    with Display("reading the runs"):
        found = compare(directories, claim or [])
    table = Table(title="Claims, model by model", title_justify="left")
    for name in ("#", "claim, and the models of each unit", "θ", "n", "verdict"):
        table.add_column(name)
    for one in found:
        table.add_section()
        rule = one.rule
        table.add_row(rule.number, f"[bold]{escape(rule.text)}[/]\nθ = {escape(rule.quantity)}")
        for unit in one.units:
            theta = unit.claim.theta
            n = "–" if theta is None or theta.n is None else f"{theta.n:,}"
            shown = format_number(theta) if theta else "–"
            table.add_row("", escape(unit.name), shown, n, unit.claim.verdict)
        if one.mean is not None and one.effects is not None:
            between = f"τ = {digits(one.effects.tau)}, I² = {100 * one.effects.i2:.0f} %"
            lead = f"[bold]random-effects mean of {one.effects.units} units[/]\n{between}"
            table.add_row(
                "", lead, format_number(one.mean), str(one.effects.units), f"[bold]{one.verdict}[/]"
            )
        table.add_row("", f"[italic]{escape(one.why)}[/]")
    out.print(table)
    if any(one.mean is None for one in found):
        err.print(
            f"A statement about diffusion models needs {LEAST_UNITS} or more models or trainings as units."
        )
    if json_file:
        plain = finite([one.as_json() for one in found])
        text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        atomic.make_folder(json_file.parent)
        atomic.write(json_file, text.encode("utf-8", "backslashreplace"))
    if csv_file:
        atomic.make_folder(csv_file.parent)
        atomic.write(csv_file, _csv(found).encode("utf-8", "backslashreplace"))


def _csv(found: "tuple[ClaimComparison, ...]") -> str:
    """Write a row per claim and unit, shares as shares of 1; the mean's row is called `mean`."""
    buffer = io.StringIO()
    lines = csv.DictWriter(buffer, _COLUMNS, restval="", lineterminator="\n")
    lines.writeheader()
    for one in found:
        rule = one.rule
        common = {"claim": rule.number, "text": rule.text, "unit": rule.unit, "delta": rule.delta}
        for unit in one.units:
            row: dict[str, Any] = {"name": unit.name, "verdict": unit.claim.verdict}
            if theta := unit.claim.theta:
                row |= {k: getattr(theta, k) for k in ("value", "low", "high", "level", "n")}
            lines.writerow({**common, **row, "scope": unit.claim.scope})
        if one.effects is not None:
            ends = {"value": one.effects.mean, "low": one.effects.low, "high": one.effects.high}
            ends |= {"level": one.effects.level, "n": one.effects.units}
            differ = {"tau": one.effects.tau, "i2": one.effects.i2}
            lines.writerow({**common, "name": "mean", **ends, **differ, "verdict": one.verdict})
    return buffer.getvalue()
