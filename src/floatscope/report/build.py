"""From a run directory to a page: findings become content, figures are drawn, traces become scenes.

It reads what a run left behind; it needs no model and never imports torch.
"""

import io
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..engine import Run, atomic
from ..measures.figures import STYLE, save
from ..studies import claim as decided
from ..studies.findings import Findings
from ..studies.planning import settings_of, studies_of
from ..studies.study import Picture, Study
from ..studies.tables import tables
from .catalogue import Catalogue
from .content import Claim, Drawn, ModelLine, Number, Page, Section, Table
from .embed import as_json
from .pack import scene_of
from .page import render
from .parts import Scene

if TYPE_CHECKING:
    from .serve import Source

BUDGET = 20_000_000  # bytes of a page
_ROWS = 6  # of a table's preview
_WIDE = 10  # columns of it


def write_report(found: Findings, *, budget: int = BUDGET) -> Path:
    """report.html beside the results it links to."""
    path = Path(found.run.directory) / "report.html"
    atomic.write(path, render(page_of(found, budget)).encode())
    return path


def write_figures(found: Findings, ending: str) -> list[Path]:
    """Every figure as a file, for papers."""
    folder = Path(found.run.directory) / "figures"
    folder.mkdir(exist_ok=True)
    return [
        save(picture.draw(), folder / f"{study.name}-{picture.name}.{ending}")
        for study in studies_of(found.request)
        for picture in study.figures(found)
    ]


def source_of(directory: Path) -> "str | Path | Source":
    """What `view` serves: a run's kept traces, or a directory of saved ones."""
    if Run(directory).asked() is None:
        return directory
    found = Findings(directory)
    shown = {f"r{i}": one for i, one in enumerate(found.shown())}
    title = f"Floatscope: {directory.resolve().name}"
    return Catalogue(title, list(shown), lambda name: found.trace(*shown[name][2:]))


def page_of(found: Findings, budget: int = BUDGET) -> Page:
    frames = tables(found)
    sections = tuple(_section(study, found, frames) for study in studies_of(found.request))
    weight = sum(len(d.svg) for s in sections for d in s.figures) + 300_000
    scenes, notes = _scenes(found, budget - weight)
    return Page(
        title="Floatscope: where attention rests",
        models=tuple(_model(found.models[name], name) for name in found.models),
        claims=tuple(c for s in sections for c in s.claims),
        sections=sections,
        scenes=tuple(scenes),
        notes=(*notes, *_left_out(found)),
        command=command(found),
        version=version("floatscope"),
    )


def command(found: Findings, study: str = "") -> str:
    """What to type to run it again: every field that is not the default."""
    request = found.request
    words = ["floatscope study", study or " ".join(request.studies)]
    words += [f"--model {_quoted(name)}" for name in request.models]
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if name in ("studies", "models") or value == field.default:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            several = value if isinstance(value, tuple) else (value,)
            words += [f"--{flag} {_quoted(str(one))}" for one in several]
    return " ".join([*words, f"--out run-{study}" if study else "--out run"])


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


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


def _section(study: Study, found: Findings, frames: dict[str, pd.DataFrame]) -> Section:
    names = [*study.measures(found.request)]
    if study.settings(found.request):
        names.append("answers")
    if study.name == "decoding":
        names.append("decoding-order")
    return Section(
        name=study.name,
        question=study.question,
        findings=tuple(study.findings(found)),
        claims=tuple(_claim(c) for c in study.claims(found)),
        figures=tuple(_drawn(p) for p in study.figures(found)),
        method=study.method,
        command=command(found, study.name),
        tables=tuple(_table(n, frames[n], study, found) for n in names if n in frames),
    )


def _claim(one: decided.Claim) -> Claim:
    return Claim(
        one.number,
        one.text,
        one.verdict,
        one.sentence,
        tuple(_number(n) for n in one.numbers),
        one.study,
    )


def _number(n: decided.Number) -> Number:
    """Differences of shares are shown in points."""
    scale = 100.0 if n.unit == "points" else 1.0

    def scaled(value: float | None) -> float | None:
        return None if value is None else scale * value

    low, high, null = scaled(n.low), scaled(n.high), scaled(n.null)
    return Number(n.label, scale * n.value, low, high, null, n.unit, n.n)


def _drawn(picture: Picture) -> Drawn:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(STYLE):
        picture.draw().savefig(buffer, format="svg", metadata={"Date": None})
    return Drawn(picture.name, picture.title, picture.alt, buffer.getvalue())


def _table(name: str, frame: pd.DataFrame, study: Study, found: Findings) -> Table:
    if name == "answers":
        own = {s.name for s in study.settings(found.request)} & set(settings_of(found.request))
        frame = frame[frame["setting"].isin(own)]
    columns = list(frame.columns)[:_WIDE]
    rows = [tuple(row) for row in frame[columns].head(_ROWS).itertuples(index=False)]
    return Table(name, f"results/{name}.parquet", tuple(columns), tuple(rows), len(frame))


def _scenes(found: Findings, budget: int) -> tuple[list[Scene], list[str]]:
    """Whole examples, all models of each, until the page is full; what does not fit is said."""
    by_example: dict[str, list[tuple[str, int]]] = {}
    for _, example, shard, index in found.shown():
        by_example.setdefault(example, []).append((shard, index))
    scenes: list[Scene] = []
    used = 0
    for number, (example, places) in enumerate(by_example.items()):
        made = [scene_of(found.trace(*place), example=example) for place in places]
        weight = sum(len(as_json(scene)) for scene in made)
        if used + weight > budget and scenes:
            total = found.request.limit
            return scenes, [
                f"The viewer shows {number} of {total} examples, the first that fit into the page; "
                f"{len(by_example)} were kept. `floatscope view` serves all that were kept."
            ]
        scenes += made
        used += weight
    if len(by_example) < found.request.limit:
        return scenes, [
            f"The viewer shows {len(by_example)} of {found.request.limit} traced examples: the others "
            "were measured and let go (--view keeps more)."
        ]
    return scenes, []


def described(one: dict[str, Any]) -> str:
    """What was left out, and why, in words."""
    inner = one.get("what", one)
    return f"{inner['what']}: {inner['why']}" if isinstance(inner, dict) else str(one)


def _left_out(found: Findings) -> list[str]:
    notes = [f"Left out: {described(one)}" for one in found.left_out[:20]]
    more = len(found.left_out) - len(notes)
    return [*notes, f"… and {more} more, in manifest.json"] if more > 0 else notes
