"""The command `floatscope verify`: check that a run can be reproduced from its models and data."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import RunError
from .app import Plugins, app, out
from .progress import Display


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="A finished run's directory.")],
    shards: Annotated[int, typer.Option(min=1, help="Number of shards to compute again.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Selects which.")] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest accepted difference between two numbers.")
    ] = 1e-5,
    plugin: Plugins = None,
) -> None:
    """Compute some shards of a run again, and compare them.

    Needs the run's models and data, here or where the run was made. On the machine that made it a shard
    is identical; on another, last digits may differ, and a near-tie may give another token.
    """
    from ..studies.verifying import verify

    table = Table("shard", "work", "largest difference", "")
    failed = 0
    with Display("verifying", "shards", shards) as display:
        for check in verify(
            directory,
            sample=shards,
            seed=seed,
            progress=lambda name: display.update(f"verifying {name}"),
        ):
            right = not check.differs and check.largest <= tolerance
            failed += not right
            word = "byte for byte" if check.exact else "within tolerance" if right else "differs"
            why = f": {check.differs}" if check.differs else ""
            table.add_row(
                escape(check.shard),
                escape(check.work),
                "–" if check.largest != check.largest else f"{check.largest:.2g}",
                f"{'[green]✓' if right else '[red]✗'}[/] {escape(word + why)}",
            )
            display.update(completed=table.row_count)
    out.print(table)
    if failed:
        raise RunError(
            f"{failed} of {table.row_count} shards differ from what is stored in {directory}",
            "Look for another version, machine or dtype (run.json: about), or changed weights or data.",
        )
