"""`floatscope report`, `view`: a run directory becomes a page, or is served."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import UsageError
from .app import Plugins, app, err, out


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A run's directory.")],
    figures: Annotated[
        str | None, typer.Option(help="Also write every figure as pdf, svg or png: figures/.")
    ] = None,
    budget: Annotated[
        float, typer.Option(help="The page's size in MB; the viewer samples to fit.")
    ] = 20.0,
    plugin: Plugins = None,
) -> None:
    """Write report.html from a run directory, and figures for papers."""
    from ..report.build import write_figures, write_report
    from ..studies.findings import Findings

    if figures is not None and figures not in ("pdf", "svg", "png"):
        raise UsageError(f"--figures {figures}", "Use pdf, svg or png.")
    findings = Findings(directory)
    with err.status("Writing the report …"):
        page = write_report(findings, budget=int(budget * 1e6))
        drawn = write_figures(findings, figures) if figures else []
    if drawn:
        out.print(f"{len(drawn)} figures in {escape(str(drawn[0].parent))}")
    out.print(escape(str(page)))


@app.command()
def view(
    directory: Annotated[Path, typer.Argument(help="A run's directory, or one of *.zarr traces.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    plugin: Plugins = None,
) -> None:
    """Serve the viewer on this machine alone, reading traces on demand. Ctrl-C ends it."""
    from ..report.build import source_of
    from ..report.serve import serve

    serve(source_of(directory), port, say=lambda text: out.print(escape(text), soft_wrap=True))
