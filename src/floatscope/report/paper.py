"""Write a run's files for a paper: tables, figures, references, and a LaTeX page that shows all of them.

    paper/tables/*.csv .tex .parquet    paper/figures/*.pdf .svg .png
    paper/references.bib                paper/overview.tex

This module chooses files and folders; `tables`, `build` and `references` create their contents.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .. import atomic
from ..errors import RunError
from ..measures.latex import tex
from ..studies.findings import Findings
from .build import pictures_of, save_figures
from .references import bibtex
from .tables import PaperTable, tables_of

TABLES = {"csv": "csv", "latex": "tex", "parquet": "parquet"}  # what is asked for → a file's ending
FIGURES = ("pdf", "svg", "png")


class Written(NamedTuple):
    """A file or folder that was written, and a description of it for the terminal."""

    path: Path
    what: str


def write_paper(
    findings: Findings,
    out: Path | None = None,
    *,
    tables: Sequence[str] = (),
    figures: Sequence[str] = (),
    width: float | None = None,
    font_size: float | None = None,
) -> list[Written]:
    """Write tables, figures and references into `out` (by default the run's folder paper/), and list them.

    `tables` and `figures` are the requested formats; `width` of figures is in inches, `font_size` in points.
    """
    out = findings.run.make_folder("paper") if out is None else out
    for folder in (out / "figures", out / "tables"):
        if folder.is_symlink():
            raise RunError(f"{folder} is a link: nothing is written through it", "Remove it.")
    atomic.make_folder(out)
    written, shown = [], []
    if tables:
        names = _write_tables(findings, out / "tables", tables)
        written.append(Written(out / "tables", f"{len(names)} tables as {', '.join(tables)}"))
        if "latex" in tables:
            shown += [f"\\input{{tables/{name}}}" for name in names]
    if figures:
        folder = atomic.make_folder(out / "figures")
        drawn = save_figures(findings, folder, figures, width=width, font_size=font_size)
        written.append(
            Written(folder, f"{len(drawn) // len(figures)} figures as {', '.join(figures)}")
        )
        if set(figures) - {"svg"}:  # which LaTeX does not read
            shown += [_figure(picture.name, picture.title) for picture in pictures_of(findings)]
    text, count = bibtex(findings)
    atomic.write(out / "references.bib", text.encode())
    written.append(Written(out / "references.bib", f"{count} entries"))
    if shown:
        atomic.write(out / "overview.tex", _overview(shown).encode())
        written.append(Written(out / "overview.tex", "all of it once, to look at and copy from"))
    return written


def _write_tables(findings: Findings, folder: Path, kinds: Sequence[str]) -> list[str]:
    atomic.make_folder(folder)
    made = tables_of(findings)
    for table in made:
        for kind in kinds:
            path = folder / f"{table.name}.{TABLES[kind]}"
            atomic.write(path, _bytes(table, kind))
    return [table.name for table in made]


def _bytes(table: PaperTable, kind: str) -> bytes:
    if kind == "parquet":
        buffer = io.BytesIO()
        table.frame.to_parquet(buffer, index=False)
        return buffer.getvalue()
    text = table.latex if kind == "latex" else str(table.frame.to_csv(index=False))
    return text.encode("utf-8", "backslashreplace")


def _figure(name: str, title: str) -> str:
    return "\n".join(
        [
            r"\begin{figure}[t]",
            r"\centering",
            f"\\includegraphics{{figures/{name}}}",
            f"\\caption{{{tex(title)}.}}",
            f"\\label{{fig:{name}}}",
            r"\end{figure}",
        ]
    )


def _overview(shown: Sequence[str]) -> str:
    """Return the LaTeX page that shows tables and figures; figures are not scaled, nor is their text."""
    head = r"""% pdflatex overview; bibtex overview; pdflatex overview
\documentclass[10pt,twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage[margin=0.75in,columnsep=0.25in]{geometry}
\usepackage{booktabs,graphicx,hyperref}
\extrafloats{500}
\begin{document}
\nocite{*}
"""
    parts = [f"{part}\n\\clearpage" if i % 8 == 7 else part for i, part in enumerate(shown)]
    foot = "\\bibliographystyle{plain}\n\\bibliography{references}\n\\end{document}\n"
    return head + "\n\n".join(parts) + "\n\n" + foot
