"""A study: a question put to several models, the work it takes, and the verdict it can reach.

A study names measures (of traces) and settings (of questions asked); the plan does each once, however
many studies share it. `claims` puts numbers to the rules, `findings` writes sentences from
numbers, `figures` draws. Nothing here runs a model.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..measures.base import Measure
from ..registry import Registry
from .claim import Claim
from .draw import Picture, of_measure
from .evidence import Evidence
from .request import Request
from .setting import QUESTIONS, Setting
from .verdict import Rule

Shows = Mapping[str, tuple[str, str]]  # measure → its figure's title and alternative text
_ALT = "Every value with its null and interval."
STUDIES: "Registry[Study]" = Registry(
    "study", "floatscope.studies.library", make=lambda study: study()
)


class Study:
    """Subclass and fill in; a line in `library/__init__.py`, or `register`, makes it known."""

    registry: ClassVar["Registry[Study]"] = STUDIES
    name: ClassVar[str]
    question: ClassVar[str]
    rules: ClassVar[
        tuple[Rule, ...]
    ] = ()  # of the claims it gives a verdict on, put before the run
    method: ClassVar[str]  # definitions and controls, in words and formulas
    control: ClassVar[bool] = True  # its measures are taken of the untrained control too
    shows: ClassVar[Shows] = {}  # by default every measure, under its own name

    @property
    def decides(self) -> tuple[int, ...]:
        """Numbers of its claims."""
        return tuple(rule.number for rule in self.rules)

    def measures(self, request: Request) -> dict[str, Measure]:
        """Asked of every trace, by a name of their own."""
        return {}

    def domains(self, request: Request) -> tuple[str, ...]:
        """What is traced: questions, and running prose where a study compares the two."""
        return (QUESTIONS,)

    def settings(self, request: Request) -> Sequence[Setting]:
        """The ways in which questions are asked."""
        return ()

    def claims(self, evidence: Evidence) -> Sequence[Claim]:
        return ()

    def findings(self, evidence: Evidence) -> Sequence[str]:
        """A sentence or two per model, written from the numbers."""
        return ()

    def figures(self, evidence: Evidence) -> Sequence[Picture]:
        """The measures' own figures, those of `shows`, for every model."""
        shows = self.shows or {key: (key, _ALT) for key in self.measures(evidence.request)}
        return [
            picture
            for key, (title, alt) in shows.items()
            for picture in of_measure(evidence, key, title, alt)
        ]
