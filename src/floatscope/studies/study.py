"""A study: a question put to several models, the work it takes, and the verdict it can reach.

A study names measures (of traces) and settings (of questions asked); the plan does each once, however
many studies share it. `claims` computes verdicts from intervals, `findings` writes sentences from
numbers, `figures` draws. Nothing here runs a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..measures.measure import Measure
from .claim import Claim
from .request import Request

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .findings import Findings

MAIN, KNOWN = "main", "known"  # whom questions are about
QUESTIONS, PROSE = "questions", "prose"  # what is traced


@dataclass(frozen=True)
class Setting:
    """One way to ask the questions. `{first}` and `{last}` stand for thirds of a model's layers."""

    name: str
    condition: str = "as-is"
    intervention: str = ""
    sampler: str = ""  # "" = the run's; others are for diffusion models alone
    people: str = MAIN


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn; `alt` says in words what is on it."""

    name: str
    title: str
    alt: str
    draw: "Callable[[], Figure]"


class Study:
    """Subclass, fill in, and add a line to STUDIES."""

    name: ClassVar[str]
    question: ClassVar[str]
    decides: ClassVar[tuple[int, ...]] = ()  # numbers of the claims it gives a verdict on
    method: ClassVar[str]  # definitions and controls, in words and formulas

    def measures(self, request: Request) -> dict[str, Measure]:
        """Asked of every trace, by a name of their own."""
        return {}

    def domains(self, request: Request) -> tuple[str, ...]:
        """What is traced: questions, and running prose where a study compares the two."""
        return (QUESTIONS,)

    def settings(self, request: Request) -> Sequence[Setting]:
        """The ways in which questions are asked."""
        return ()

    def claims(self, found: "Findings") -> Sequence[Claim]:
        return ()

    def findings(self, found: "Findings") -> Sequence[str]:
        """A sentence or two a model, written from the numbers."""
        return ()

    def figures(self, found: "Findings") -> Sequence[Picture]:
        return ()
