"""Build a page from a run directory: draw the figures, and choose scenes that fit beside the figures.

The module reads only files of the run. It needs no model, and does not import torch.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import atomic
from ..engine import Run
from ..plots import figure_size, save, style
from ..scenes.parts import Scene
from ..studies.alone import alone
from ..studies.draw import Picture
from ..studies.findings import Findings
from ..studies.setting import SERVED
from ..studies.stored import understood
from .catalogue import StoredScenes
from .content import sections_of
from .embed import as_json
from .opening import opening_pictures
from .page import Drawing, image, render

if TYPE_CHECKING:
    from .serve import Source

BUDGET = 20_000_000  # bytes of a page
_DPI = 300  # of pixels for paper
# Text and axes of a figure on the page. The colour stands for a variable, which a light and a dark page set.
_INK = "#1a1f26"
_INKS = (
    f"<style>:root {{ --ink: {_INK} }} "
    "@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee } }</style>"
)
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_TRANSPARENT = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none")


def write_report(findings: Findings, *, budget: int = BUDGET) -> Path:
    """Write report.html into the run directory, and return its path; `budget` limits its size in bytes.

    The page links to the files in results/.
    """
    path = Path(findings.run.directory) / "report.html"
    with understood(findings.run.directory):
        page = render_report(findings, budget).encode("utf-8", "backslashreplace")
    atomic.write(path, page)
    return path


def save_figures(
    findings: Findings,
    folder: Path,
    endings: Sequence[str],
    *,
    width: float | None = None,
    font_size: float | None = None,
) -> list[Path]:
    """Write every figure of a run in the formats `endings`, and return the paths of the files.

    `width` is in inches, `font_size` in points.
    """
    written = []
    for picture in pictures_of(findings):
        with figure_size(width=width, font_size=font_size):
            figure = picture.draw()
        try:
            for ending in endings:
                written.append(save(figure, folder / f"{picture.name}.{ending}", dpi=_DPI))
        except OSError as error:
            raise atomic.unwritable(folder, error) from error
    return written


def pictures_of(findings: Findings) -> list[Picture]:
    """Return the figures of all studies of a run, named after study, extra run and figure."""
    return [
        replace(picture, name="-".join(filter(None, (study.name, part.file_prefix, picture.name))))
        for part, study in sections_of(findings)
        for picture in study.figures(part)
    ]


def source_of(directory: Path) -> "str | Path | Source":
    """Return the source of scenes that `floatscope view` serves for a directory.

    For a run, the source is the scenes that the run stores. Any other directory is returned unchanged, and is
    expected to contain saved traces.
    """
    if Run(directory).read_request() is None:
        return directory
    with understood(directory):
        findings = Findings(directory)
        parts = (*findings.extra_runs, findings)
        examples = [(part, example) for part in parts for example in part.shown()]
    shown = {f"r{i}": example for i, example in enumerate(examples)}

    def read(scene_id: str, *, arrays: bool = True) -> Scene:
        part, (_, _, shard, index) = shown[scene_id]
        with understood(directory):
            return part.scene(shard, index, SERVED, arrays=arrays)

    title = f"Floatscope: {directory.resolve().name}"
    return StoredScenes(title, list(shown), read, partial(read, arrays=False))


def render_report(findings: Findings, budget: int = BUDGET) -> str:
    """Return the report's page as HTML: all figures, and as many scenes as fit into `budget` bytes."""
    for part in (findings, *findings.extra_runs):
        part.gather()
    figures = [
        [drawing_of(picture) for picture in study.figures(part)]
        for part, study in sections_of(findings)
    ]
    weight = sum(len(drawn.source) for several in figures for drawn in several) + 300_000
    opening = [drawing_of(picture) for picture in opening_pictures(findings)]
    single = alone(findings)
    by_itself = [drawing_of(picture) for picture in single.pictures] if single else []
    scenes, notes = scenes_of(findings, budget - weight)
    notes += _left_out(findings)
    return render(findings, figures, scenes, notes, opening, single, by_itself)


def scenes_of(findings: Findings, budget: int) -> tuple[list[Scene], list[str]]:
    """Return the viewer's scenes that fit into `budget` characters, and notes on what is left out.

    The scenes of extra runs come first. The notes include the notes of the main run and of all extra runs.
    """
    scenes: list[Scene] = []
    notes: list[str] = []
    # What a run adds to another is there to be looked at.
    for part in (*findings.extra_runs, findings):
        room = budget - sum(len(as_json(scene)) for scene in scenes)
        fitting, missing = _scenes(part, room)
        scenes += fitting
        notes += [*missing, *(note for note in part.notes if note not in part.warnings)]
    return scenes, notes


def drawing_of(picture: Picture) -> Drawing:
    """Return a figure as an SVG image, in which browsers run no scripts and fetch nothing.

    The background is transparent, and text and axes follow the colour scheme of the element around it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with rc_context(style() | dict.fromkeys(_INKED, _INK) | _TRANSPARENT):
        # `savefig` draws twice where a layout is to be found; drawing finds it by itself.
        figure = picture.draw()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    svg = buffer.getvalue().replace(_INK, "var(--ink)").replace("<defs>", f"<defs>{_INKS}", 1)
    return Drawing(picture.title, picture.alt, image(svg), round(96 * figure.get_figwidth()))


def _scenes(findings: Findings, budget: int) -> tuple[list[Scene], list[str]]:
    """Return the scenes of the first examples that fit into `budget`, and a note on other examples.

    `budget` is a number of characters. An example is included only with the scenes of all models.
    """
    by_example: dict[str, list[tuple[str, int]]] = {}
    for _, example, shard, index in findings.shown():
        by_example.setdefault(example, []).append((shard, index))
    scenes: list[Scene] = []
    used = 0
    for number, places in enumerate(by_example.values()):
        made = [findings.scene(*place) for place in places]
        weight = sum(len(as_json(scene)) for scene in made)
        if used + weight > budget and scenes:
            total = findings.request.limit
            return scenes, [
                f"The viewer shows {number} of {total} examples, the first that fit into the page; "
                f"{len(by_example)} were kept. `floatscope view` serves all that were kept."
            ]
        scenes += made
        used += weight
    if len(by_example) < findings.request.limit:
        return scenes, [
            f"The viewer shows {len(by_example)} of {findings.request.limit} traced examples: the others "
            "were measured, and their attention was not kept (--view N keeps that of N)."
        ]
    return scenes, []


def described(one: dict[str, Any]) -> str:
    """Return one entry of `left_out` as text: what was left out, and why."""
    inner = one.get("what", one)
    return f"{inner['what']}: {inner['why']}" if isinstance(inner, dict) else str(one)


def _left_out(findings: Findings) -> list[str]:
    notes = [f"Left out: {described(one)}" for one in findings.left_out[:20]]
    more = len(findings.left_out) - len(notes)
    return [*notes, f"… and {more} more, in manifest.json"] if more > 0 else notes
