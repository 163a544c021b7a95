"""What a report page says, as plain values: claims with their numbers, sections, tables, scenes.

Nothing is measured, judged or drawn here, and every text is text: `page` decides how it looks.
"""

from dataclasses import dataclass
from typing import Any

from ..studies.claim import Claim
from ..studies.registration import Registered


@dataclass(frozen=True)
class Drawn:
    """A figure: SVG as it was drawn, and the same in words for those who do not see it."""

    name: str
    title: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Table:
    """A table on disk, its path relative to the page, and its first lines."""

    name: str
    file: str
    columns: tuple[str, ...]
    lines: tuple[tuple[object, ...], ...]
    total: int

    def __post_init__(self) -> None:
        wrong = [len(line) for line in self.lines if len(line) != len(self.columns)]
        if wrong:
            raise ValueError(
                f"table {self.name!r}: expected {len(self.columns)} cells in a line, got {wrong[0]}"
            )


@dataclass(frozen=True)
class Answer:
    """What a model said to a question in one setting; None: it is not known, or has no meaning."""

    model: str
    setting: str
    text: str
    cut: bool | None  # off by its length
    right: bool | None
    counted: str  # which gold answer


@dataclass(frozen=True)
class Asked:
    """A question, its gold answers in one text, and what was said to it."""

    question: str
    gold: str
    answers: list[Answer]


@dataclass(frozen=True)
class Examples:
    """Some of the questions of a study; all of them are in the file, its path relative to the page."""

    asked: tuple[Asked, ...]
    total: int
    file: str


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
    examples: Examples | None = None


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
    warnings: tuple[str, ...] = ()  # what a reader must know before the claims
    registered: Registered | None = None  # what was written down before the run
    answer: str = ""  # whether attention floats, in one sentence; "" where it was not asked
