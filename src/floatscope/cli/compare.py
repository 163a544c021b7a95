"""The command `floatscope compare`: show the claims of several runs side by side.

Each claim is decided for the mean θ if there are at least five models or trainings.
"""

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

    With five or more models or trainings, a claim is decided for their mean; with fewer, no claim is
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
        comparisons = compare(directories, claim or [])
    table = Table(title="Claims, model by model", title_justify="left")
    for name in ("#", "claim, and the models of each unit", "θ", "n", "verdict"):
        table.add_column(name)
    for comparison in comparisons:
        table.add_section()
        rule = comparison.rule
        table.add_row(rule.number, f"[bold]{escape(rule.text)}[/]\nθ = {escape(rule.quantity)}")
        for unit in comparison.units:
            theta = unit.claim.theta
            n = "–" if theta is None or theta.n is None else f"{theta.n:,}"
            shown = format_number(theta) if theta else "–"
            table.add_row("", escape(unit.name), shown, n, unit.claim.verdict)
        if comparison.mean is not None and comparison.effects is not None:
            between = (
                f"τ = {digits(comparison.effects.tau)}, I² = {100 * comparison.effects.i2:.0f} %"
            )
            lead = f"[bold]random-effects mean of {comparison.effects.units} units[/]\n{between}"
            table.add_row(
                "",
                lead,
                format_number(comparison.mean),
                str(comparison.effects.units),
                f"[bold]{comparison.verdict}[/]",
            )
        table.add_row("", f"[italic]{escape(comparison.why)}[/]")
    out.print(table)
    if any(comparison.mean is None for comparison in comparisons):
        err.print(
            f"A statement about diffusion models needs {LEAST_UNITS} or more models or trainings as units."
        )
    if json_file:
        plain = finite([comparison.as_json() for comparison in comparisons])
        text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        atomic.make_folder(json_file.parent)
        atomic.write(json_file, text.encode("utf-8", "backslashreplace"))
    if csv_file:
        atomic.make_folder(csv_file.parent)
        atomic.write(csv_file, _csv(comparisons).encode("utf-8", "backslashreplace"))


def _csv(comparisons: "tuple[ClaimComparison, ...]") -> str:
    """Return CSV text with a row per claim and unit, and a row `mean` for a claim's mean.

    Shares are from 0 to 1.
    """
    buffer = io.StringIO()
    lines = csv.DictWriter(buffer, _COLUMNS, restval="", lineterminator="\n")
    lines.writeheader()
    for comparison in comparisons:
        rule = comparison.rule
        common = {"claim": rule.number, "text": rule.text, "unit": rule.unit, "delta": rule.delta}
        for unit in comparison.units:
            row: dict[str, Any] = {"name": unit.name, "verdict": unit.claim.verdict}
            if theta := unit.claim.theta:
                row |= {k: getattr(theta, k) for k in ("value", "low", "high", "level", "n")}
            lines.writerow({**common, **row, "scope": unit.claim.scope})
        if comparison.effects is not None:
            ends = {
                "value": comparison.effects.mean,
                "low": comparison.effects.low,
                "high": comparison.effects.high,
            }
            ends |= {"level": comparison.effects.level, "n": comparison.effects.units}
            differ = {"tau": comparison.effects.tau, "i2": comparison.effects.i2}
            lines.writerow(
                {**common, "name": "mean", **ends, **differ, "verdict": comparison.verdict}
            )
    return buffer.getvalue()
