"""The commands `floatscope report` and `floatscope view`: write the page of a run, or serve its viewer."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..errors import UsageError
from .app import Plugins, app, out, output_option
from .progress import Display


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A run's directory.")],
    tables: Annotated[
        str | None, typer.Option(help="Tables for a paper: csv, latex, parquet, or several.")
    ] = None,
    figures: Annotated[
        str | None, typer.Option(help="Figures for a paper: pdf, svg, png, or several.")
    ] = None,
    width: Annotated[
        str | None, typer.Option(help="Width of every figure: 3.3in, 8.4cm, 84mm or 240pt.")
    ] = None,
    font_size: Annotated[
        float | None, typer.Option(help="Font size in figures, in points; 8 by default.")
    ] = None,
    to: Annotated[
        Path | None,
        output_option("--out", help="Folder for tables and figures. Default: RUN/paper."),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="The page's size in MB; the viewer samples to fit.")
    ] = 20.0,
    plugin: Plugins = None,
) -> None:
    """Write a run's page, and tables and figures for papers."""
    from ..report.build import write_report
    from ..report.paper import FIGURES, TABLES, write_paper
    from ..studies.findings import Findings
    from ..studies.stored import understood

    formats = {
        "tables": _parse_choices("--tables", tables, tuple(TABLES)),
        "figures": _parse_choices("--figures", figures, FIGURES),
    }
    width_inches = None if width is None else inches(width)
    if not any(formats.values()) and (width_inches or font_size or to):
        raise UsageError(
            "--width, --font-size and --out are for tables and figures",
            "Add them: --figures pdf, --tables latex.",
        )
    if font_size is not None and not 1 <= font_size <= 72:
        raise UsageError(f"--font-size {font_size:g}", "Give points, such as 8.")
    findings = Findings(directory)
    with Display("writing the report"):
        page = write_report(findings, budget=int(budget * 1e6))
        with understood(directory):
            written = (
                write_paper(findings, to, **formats, width=width_inches, font_size=font_size)
                if any(formats.values())
                else []
            )
    for path, content in written:
        out.print(f"{escape(str(path))}: {escape(content)}", soft_wrap=True)
    out.print(escape(str(page)))


def _parse_choices(option: str, text: str | None, choices: tuple[str, ...]) -> list[str]:
    """Parse a list such as "csv,latex"; raise UsageError for a name that is not in `choices`."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in choices:
            raise UsageError(f"{option} {text}", f"Use {', '.join(choices)}, or several: a,b.")
    return list(dict.fromkeys(names))


_INCHES = {"in": 1.0, "": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}


def inches(text: str) -> float:
    """Convert a width to inches: "3.3in", "8.4cm", "84mm", "240pt" (LaTeX's points), or a number."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(in|cm|mm|pt|)\s*", text)
    size = float(match[1]) * _INCHES[match[2]] if match else 0.0
    if not 0.5 <= size <= 40:
        raise UsageError(
            f"--width {text}", "Give a width such as 3.3in, 8.4cm, 84mm or 240pt, from 0.5in up."
        )
    return size


@app.command()
def view(
    directory: Annotated[Path, typer.Argument(help="A run's directory, or one of *.zarr traces.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    plugin: Plugins = None,
) -> None:
    """Serve the viewer of a run or of saved traces.

    The viewer is served to this machine only, and reads traces on demand. Ctrl-C ends it.
    """
    from ..report.build import source_of
    from ..report.serve import serve

    serve(source_of(directory), port, say=lambda text: out.print(escape(text), soft_wrap=True))
