"""A report's content as one HTML file that opens without a network, in a browser and on paper.

It measures nothing and judges nothing. Every text goes through the template's escaping; what is
already markup is only style, script, the viewer's fragment, drawn ranges and figures made safe.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ..studies.claim import VERDICTS, Claim, curve_said
from ..studies.scope import GENERAL
from ..studies.verdict import CAUSAL, LITERATURE, level_of
from . import embed, figure, numbers, ranges
from .content import Page, Section, Table
from .strips import SHAPES, strip

_PREVIEW = 8  # lines of a table


def render(page: Page) -> str:
    """The whole document.

    Raises:
        ValueError: a figure that is not SVG, or a scene that cannot be written as JSON.
    """
    named = _anchors(page.sections)
    places: dict[str, str] = {}
    for section, place in zip(page.sections, named, strict=True):
        places.setdefault(section.name, place)
    return _template().render(
        page=page,
        sections=list(zip(page.sections, named, strict=True)),
        places=places,
        verdicts=_tally(page.claims),
        decides=_levels(page.claims),
        figures=_figures(page.sections),
        viewer=Markup(
            embed.fragment(page.scenes, name="viewer-app", with_assets=False, toggle=False)
        )
        if page.scenes
        else "",
        assets=Markup(embed.assets()) if page.scenes else "",
        policy=embed.OFFLINE,
        style=Markup(_text("page.css")),
        script=Markup(_text("page.js")),
    )


def _text(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


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
        "strip": strip,
        "curve_said": curve_said,
    }
    made.globals |= {"drawings": ranges.drawings, "preview": _preview, "general": GENERAL}
    made.globals |= {"CAUSAL": CAUSAL}
    return made.from_string(_text("page.html.j2"))


def _tight(text: str) -> str:
    """A number keeps its unit, and an interval its ends, on one line."""
    text = re.sub(r"\[([^\[\], ]+), ([^\[\], ]+)\]", "[\\1,\u00a0\\2]", text)
    return re.sub(r"(?<=\d) (?=%)|(?<=\bn) (?== \d)|(?<=\bn[ \u00a0]=) (?=\d)", "\u00a0", text)


def _slug(text: str) -> str:
    """A word that can be part of an id and a class."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _anchors(sections: Sequence[Section]) -> list[str]:
    """An id for every section, each its own."""
    places: list[str] = []
    for i, section in enumerate(sections, 1):
        name = f"study-{_slug(section.name) or i}"
        places.append(f"{name}-{i}" if name in places else name)
    return places


def _link(file: str) -> str:
    """A file below or beside the page; never a scheme, never another host."""
    return "./" + quote(file.replace("\\", "/").lstrip("/"), errors="replace")


def _shape(verdict: str) -> Markup:
    opening = '<svg class="shape" viewBox="0 0 12 12" aria-hidden="true" focusable="false">'
    return Markup(opening + SHAPES[verdict] + "</svg>")


def _tally(claims: Sequence[Claim]) -> list[tuple[str, int]]:
    counts = Counter(claim.verdict for claim in claims)
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]


def _levels(claims: Iterable[Claim]) -> str:
    """At which level the intervals decide: each family has its own."""
    places = {LITERATURE: 0, CAUSAL: 1}
    families = {claim.family or LITERATURE for claim in claims}
    levels = list[str]()
    for family in sorted(families, key=lambda family: (places.get(family, 2), family)):
        words = "causal questions" if family == CAUSAL else f"claims of the family {family}"
        level = f"{100 * level_of(family):.1f} %"
        levels.append(f"for {words} {level}" if levels else level)
    return ", ".join(levels)


def _figures(sections: Sequence[Section]) -> dict[tuple[int, int], figure.Inline]:
    """By section and figure, ids of each with a prefix of its own."""
    return {
        (i, j): figure.inline(drawn.svg, f"f{i}-{j}-", drawn.alt)
        for i, section in enumerate(sections)
        for j, drawn in enumerate(section.figures)
    }


def _preview(table: Table) -> dict[str, list[tuple[object, ...]]]:
    """The first lines as text; a column is set right where it holds numbers."""
    lines = table.lines[:_PREVIEW]
    columns = [numbers.column([line[i] for line in lines]) for i in range(len(table.columns))]
    heads = [(name, right) for name, (_, right) in zip(table.columns, columns, strict=True)]
    return {"columns": [*heads], "lines": [*zip(*(cells for cells, _ in columns), strict=True)]}
