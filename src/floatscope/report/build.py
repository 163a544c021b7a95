"""From a run directory to a page: findings become content, figures are drawn, traces become scenes.

It reads what a run left behind; it needs no model and never imports torch.
"""

import io
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..engine import Run, atomic
from ..plots import Figure, asked, save, style
from ..scenes.parts import Scene
from ..studies.draw import Picture
from ..studies.findings import ANSWERS, ORDER, Findings
from ..studies.planning import settings_of
from ..studies.results import file_of
from ..studies.setting import SERVED
from ..studies.stored import understood
from ..studies.study import Study
from .catalogue import StoredScenes
from .content import Drawn, ModelLine, Page, Section, Table
from .embed import as_json
from .examples import examples_of
from .page import render

if TYPE_CHECKING:
    from .serve import Source

BUDGET = 20_000_000  # bytes of a page
_DPI = 300  # of pixels for paper
_LINES = 6  # of a table's preview
_WIDE = 10  # columns of it


def write_report(findings: Findings, *, budget: int = BUDGET) -> Path:
    """Write report.html into the run directory, next to the results it links to."""
    path = Path(findings.run.directory) / "report.html"
    with understood(findings.run.directory):
        page = render(page_of(findings, budget)).encode("utf-8", "backslashreplace")
    atomic.write(path, page)
    return path


def write_figures(findings: Findings, ending: str) -> list[Path]:
    """Every figure as a file, as it is on the page, into figures/."""
    folder = findings.run.make_folder("figures")
    return save_figures(findings, folder, [ending])


def save_figures(
    findings: Findings,
    folder: Path,
    endings: Sequence[str],
    *,
    width: float | None = None,
    font_size: float | None = None,
) -> list[Path]:
    """Every figure once, in every kind of file; `width` inches wide, letters of so many points."""
    written = []
    for name, _, _, draw in figures_of(findings):
        with asked(width=width, font_size=font_size):
            figure = draw()
        try:
            written += [save(figure, folder / f"{name}.{ending}", dpi=_DPI) for ending in endings]
        except OSError as error:
            raise atomic.unwritable(folder, error) from error
    return written


def figures_of(findings: Findings) -> list[tuple[str, str, str, Callable[[], Figure]]]:
    """Name of its file, title, words, and how to draw it, for every figure of every study."""
    return [
        (f"{_named(study, one, '-')}-{picture.name}", picture.title, picture.alt, picture.draw)
        for one in (findings, *findings.also)
        for study in one.studies
        for picture in study.figures(one)
    ]


def source_of(directory: Path) -> "str | Path | Source":
    """What `view` serves: the scenes that a run stores, or a directory of saved traces."""
    if Run(directory).asked() is None:
        return directory
    with understood(directory):
        findings = Findings(directory)
        every = [(part, one) for part in (*findings.also, findings) for one in part.shown()]
    shown = {f"r{i}": one for i, one in enumerate(every)}

    def read(scene_id: str, *, arrays: bool = True) -> Scene:
        part, (_, _, shard, index) = shown[scene_id]
        with understood(directory):
            return part.scene(shard, index, SERVED, arrays=arrays)

    title = f"Floatscope: {directory.resolve().name}"
    return StoredScenes(title, list(shown), read, partial(read, arrays=False))


def page_of(findings: Findings, budget: int = BUDGET) -> Page:
    every = (findings, *findings.also)
    for one in every:
        one.gather()
    sections = tuple(_section(study, one) for one in every for study in one.studies)
    weight = sum(len(d.svg) for s in sections for d in s.figures) + 300_000
    scenes: list[Scene] = []
    notes: list[str] = []
    for one in (*findings.also, findings):  # what a run adds to another is there to be looked at
        room = budget - weight - sum(len(as_json(scene)) for scene in scenes)
        some, said = _scenes(one, room)
        scenes += some
        notes += [*said, *(note for note in one.notes if note not in one.warnings)]
    models = {name: _model(about, name) for one in every for name, about in one.models.items()}
    return Page(
        title="Floatscope: where attention rests",
        models=tuple(models.values()),
        claims=findings.verdicts,
        answer=findings.answer,
        sections=sections,
        scenes=tuple(scenes),
        notes=(*notes, *_left_out(findings)),
        command=command(findings),
        version=version("floatscope"),
        warnings=tuple(warning for one in every for warning in one.warnings),
        registered=findings.registered,
    )


def command(findings: Findings, study: str = "") -> str:
    """What to type to run it again: every field that is not the default."""
    request = findings.request
    words = ["floatscope study", study or " ".join(request.studies)]
    words += [f"--model {quote(name)}" for name in request.models]
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if name in ("studies", "models", "also") or value == field.default:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            several = value if isinstance(value, tuple) else (value,)
            words += [f"--{flag} {quote(str(one))}" for one in several]
    return " ".join([*words, f"--out run-{study}" if study else "--out run"])


def _model(about: dict[str, Any], name: str) -> ModelLine:
    size = about["parameters"]
    scale, unit = (1e9, "B") if size >= 1e9 else (1e6, "M") if size >= 1e6 else (1e3, "k")
    return ModelLine(
        name=name,
        family=about["family"],
        direction=about["direction"],
        size=f"{size / scale:.3g}{unit} parameters, {about['layers']} layers × {about['heads']} heads",
        fingerprint=about["fingerprint"],
    )


def _section(study: Study, findings: Findings) -> Section:
    request = findings.request
    names = [*study.makes, *study.measures(request), *study.experiments(request)]
    if study.settings(request):
        names.append(ANSWERS)
    if study.orders:
        names.append(ORDER)
    return Section(
        name=_named(study, findings),
        question=study.question,
        findings=findings.sentences[study.name],
        claims=findings.claims[study.name],
        figures=tuple(_drawn(p) for p in study.figures(findings)),
        method=study.method,
        command=command(findings, study.name),
        tables=tuple(
            _table(n, findings.tables[n], study, findings) for n in names if n in findings.tables
        ),
        examples=examples_of(study, findings),
    )


def _named(study: Study, findings: Findings, between: str = " ") -> str:
    """As claims name their study: a further run's is told apart."""
    return f"{study.name}{between}{findings.label}" if findings.label else study.name


def _drawn(picture: Picture) -> Drawn:
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with rc_context(style()):
        # `savefig` draws twice where a layout is to be found; drawing finds it by itself.
        FigureCanvasSVG(picture.draw()).print_svg(buffer, metadata={"Date": None})
    return Drawn(picture.name, picture.title, picture.alt, buffer.getvalue())


def _table(name: str, frame: pd.DataFrame, study: Study, findings: Findings) -> Table:
    if name == ANSWERS:
        own = {s.name for s in study.settings(findings.request)} & set(
            settings_of(findings.request)
        )
        frame = frame[frame["setting"].isin(own)]
    columns = list(frame.columns)[:_WIDE]
    lines = [tuple(line) for line in frame[columns].head(_LINES).itertuples(index=False)]
    return Table(
        name, f"results/{file_of(findings, name)}", tuple(columns), tuple(lines), len(frame)
    )


def _scenes(findings: Findings, budget: int) -> tuple[list[Scene], list[str]]:
    """Whole examples, all models of each, until the page is full; what does not fit is said."""
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
            "were measured and let go (--view keeps more)."
        ]
    return scenes, []


def described(one: dict[str, Any]) -> str:
    """What was left out, and why, in words."""
    inner = one.get("what", one)
    return f"{inner['what']}: {inner['why']}" if isinstance(inner, dict) else str(one)


def _left_out(findings: Findings) -> list[str]:
    notes = [f"Left out: {described(one)}" for one in findings.left_out[:20]]
    more = len(findings.left_out) - len(notes)
    return [*notes, f"… and {more} more, in manifest.json"] if more > 0 else notes
