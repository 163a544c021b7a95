"""What a report page says, as plain values: claims with their numbers, sections, tables, scenes.

Nothing is measured, judged or drawn here, and every text is text: `page` decides how it looks.
"""

from dataclasses import dataclass
from typing import Any

VERDICTS = ("supported", "not supported", "mixed", "not tested")


@dataclass(frozen=True)
class Number:
    """A finding with its 95 % interval, what chance alone gives, and how many examples it rests on."""

    label: str
    value: float
    low: float | None
    high: float | None
    null: float | None
    unit: str  # "%": a share from 0 to 1, shown times 100; "×": a lift; or another word
    n: int | None


@dataclass(frozen=True)
class Claim:
    """A claim of the literature and what the numbers say to it."""

    number: int
    text: str
    verdict: str
    sentence: str
    numbers: tuple[Number, ...]
    study: str  # the name of the section that shows it

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r} is none of {', '.join(VERDICTS)}")


@dataclass(frozen=True)
class Drawn:
    """A figure: SVG as it was drawn, and the same in words for those who do not see it."""

    name: str
    title: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Table:
    """A table on disk, its path relative to the page, and its first rows."""

    name: str
    file: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    total: int

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(
                f"table {self.name!r}: a row has not as many cells as there are columns"
            )


@dataclass(frozen=True)
class Section:
    """A study: what it asks, what it found, how, and with which command."""

    name: str
    question: str
    findings: tuple[str, ...]
    claims: tuple[Claim, ...]
    figures: tuple[Drawn, ...]
    method: str
    command: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class ModelLine:
    """A model in one line."""

    name: str
    family: str
    direction: str
    size: str
    fingerprint: str


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    models: tuple[ModelLine, ...]
    claims: tuple[Claim, ...]
    sections: tuple[Section, ...]
    scenes: tuple[dict[str, Any], ...]  # of `pack.scene_of`, for the viewer
    notes: tuple[str, ...]  # what was left out or sampled
    command: str
    version: str
