"""Render findings as one HTML file that needs no network, for a browser and for printing.

This module does not measure or judge. The template escapes all text. Only style, script, the viewer's
fragment and drawn ranges are inserted as markup. Figures are images.
"""

import base64
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from ..scenes.parts import Scene
from ..studies.alone import Alone
from ..studies.answer import Answered
from ..studies.claim import VERDICTS, Claim, describe_curve
from ..studies.findings import Findings
from ..studies.scope import GENERAL
from ..studies.study import Study
from ..studies.verdict import (
    CAUSAL,
    HOLDS,
    LITERATURE,
    NOT_TESTABLE,
    REFUTED,
    UNDECIDED,
    level_of,
)
from . import content, embed, numbers, ranges
from .examples import examples_of
from .strips import SHAPES, strip

TITLE = "Floatscope: where attention rests"
# How a verdict answers a question.
_SPELLED = {HOLDS: "yes", REFUTED: "no", UNDECIDED: "cannot tell", NOT_TESTABLE: "not tested"}


class Drawing(NamedTuple):
    """A figure of the page: `alt` describes it, `source` is a data URL, `width` is in CSS pixels."""

    title: str
    alt: str
    source: str
    width: int


def image(svg: str) -> str:
    """Return a data URL of an SVG image, so that the image is inside the page."""
    data = base64.b64encode(svg.encode("utf-8", "backslashreplace"))
    return f"data:image/svg+xml;base64,{data.decode()}"


def render(
    findings: Findings,
    figures: Sequence[Sequence[Drawing]],
    scenes: Sequence[Scene] = (),
    notes: Sequence[str] = (),
    opening: Sequence[Drawing] = (),
    alone: Alone | None = None,
    alone_figures: Sequence[Drawing] = (),
) -> str:
    """Return the report of a run as a complete HTML document.

    Args:
        findings: The findings of the run.
        figures: The figures of each section, in the order of `content.sections_of`.
        scenes: The scenes of the viewer.
        notes: What was left out or sampled.
        opening: The pictures beside the answers.
        alone: The summary of a run with one kind of model; None if the run has both kinds.
        alone_figures: The figures of this summary.

    Raises:
        ValueError: If a scene cannot be written as JSON.
    """
    parts, sections = (findings, *findings.extra_runs), content.sections_of(findings)
    names = [part.title_of(study.name) for part, study in sections]
    anchors = _anchors(names)
    untested = {claim.number for claim in alone.untested} if alone else set()
    claims = [claim for claim in findings.verdicts if claim.number not in untested]
    viewer = assets = ""
    if scenes:
        viewer = embed.fragment(scenes, name="viewer-app", with_assets=False, toggle=False)
        assets = embed.assets()
    return _template().render(
        title=TITLE,
        version=version("floatscope"),
        findings=findings,
        claims=claims,
        questions=_questions(findings, untested),
        alone=alone,
        alone_figures=alone_figures,
        models={name: about for part in parts for name, about in part.models.items()},
        warnings=[warning for part in parts for warning in part.warnings],
        notes=notes,
        sections=[
            (*section, name, anchor, drawn)
            for section, name, anchor, drawn in zip(sections, names, anchors, figures, strict=True)
        ],
        tabs=_tabs(sections, names),
        places=dict(reversed([*zip(names, anchors, strict=True)])),  # of two, the first
        verdicts=_tally(claims),
        decides=_levels(claims),
        cards={claim.number: f"claim-{i}" for i, claim in enumerate(claims, 1)},
        opening=opening,
        spelled=_SPELLED,
        viewer=Markup(viewer),
        assets=Markup(assets),
        policy=embed.OFFLINE,
        style=Markup(embed.asset("page.css") + embed.asset("terms.css")),
        terms=Markup(embed.terms()),
        script=Markup(embed.asset("page.js")),
    )


@cache
def _template() -> Template:
    made = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "estimate": numbers.estimate,
        "context": numbers.context,
        "tight": _tight,
        "slug": _slug,
        "link": _link,
        "shape": _shape,
        "size": content.size_of,
        "strip": strip,
        "describe_curve": describe_curve,
    }
    made.globals |= {"drawings": ranges.drawings, "general": GENERAL, "CAUSAL": CAUSAL}
    made.globals |= {"command": content.command, "commands": content.commands}
    made.globals |= {"previews": content.previews}
    made.globals |= {"examples_of": examples_of}
    return made.from_string(embed.asset("page.html.j2"))


def _questions(findings: Findings, untested: Container[str]) -> list[Answered]:
    """Return the run's questions without the claims in `untested`, which need a model of another kind."""
    reduced = (
        replace(question, parts=tuple(p for p in question.parts if p.claim.number not in untested))
        for question in findings.questions
    )
    return [question for question in reduced if question.parts]


def _tight(text: str) -> Markup:
    """Return a text as markup that keeps a number and its unit, an interval, or an option on one line."""
    text = re.sub(r"\[([^\[\], ]+), ([^\[\], ]+)\]", "[\\1,\u00a0\\2]", text)
    text = re.sub(r"(?<=\d) (?=%)|(?<=\bn) (?== \d)|(?<=\bn[ \u00a0]=) (?=\d)", "\u00a0", text)
    value = r"(?: (?:\d+(?:\.\d+)?\b|[A-Z]+\b|[\w.]+[:/=][\w:/.,=-]*\w))?"
    typed = rf"(?<![\w-])(--[a-z][a-z-]*{value}|floatscope [a-z]+)(?![\w-])"
    return Markup(re.sub(typed, r'<code class="word">\1</code>', str(escape(text))))


def _slug(text: str) -> str:
    """Return a text as a name for an id or a class: lower-case letters, digits and "-"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _anchors(names: Sequence[str]) -> list[str]:
    """Return a unique HTML id for each section, from the section's name."""
    anchors: list[str] = []
    for i, name in enumerate(names, 1):
        anchor = f"study-{_slug(name) or i}"
        anchors.append(f"{anchor}-{i}" if anchor in anchors else anchor)
    return anchors


def _tabs(sections: Sequence[tuple[Findings, Study]], names: Sequence[str]) -> list[str]:
    """Return short names of the sections, which omit the data of extra runs unless names would be equal."""
    short = [
        f"{study.name}: {' and '.join(part.models)}" if part.label else study.name
        for part, study in sections
    ]
    return [a if short.count(a) == 1 else b for a, b in zip(short, names, strict=True)]


def _link(file: str) -> str:
    """Return a relative link to a file beside or below the page, which cannot name a scheme or host."""
    return "./" + quote(file.replace("\\", "/").lstrip("/"), errors="replace")


def _shape(verdict: str) -> Markup:
    opening = '<svg class="shape" viewBox="0 0 12 12" aria-hidden="true" focusable="false">'
    return Markup(opening + SHAPES[verdict] + "</svg>")


def _tally(claims: Sequence[Claim]) -> list[tuple[str, int]]:
    counts = Counter(claim.verdict for claim in claims)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]


def _levels(claims: Iterable[Claim]) -> str:
    """Return the levels of the intervals that decide the claims, one per family, as text."""
    places = {LITERATURE: 0, CAUSAL: 1}
    families = {claim.family or LITERATURE for claim in claims}
    levels = list[str]()
    for family in sorted(families, key=lambda family: (places.get(family, 2), family)):
        words = "causal questions" if family == CAUSAL else f"claims of the family {family}"
        level = f"{100 * level_of(family):.1f} %"
        levels.append(f"for {words} {level}" if levels else level)
    return ", ".join(levels)
