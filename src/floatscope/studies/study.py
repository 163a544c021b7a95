"""A study: a question put to several models, the work it takes, and the verdict it can reach.

A study names measures (of traces), settings (of questions asked) and experiments (on a model at work); the
plan does each once, however many studies share it. `claims` puts numbers to the rules, `findings` writes
sentences from numbers, `figures` draws, `tables` adds tables to those of the measures. Nothing here runs a
model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import pandas as pd

from ..measures.base import Measure
from ..registry import STUDIES, Registry
from .claim import Claim
from .draw import Picture, of_measure
from .evidence import Evidence
from .experiments.base import Experiment
from .request import Request
from .setting import QUESTIONS, SAME, STATES, Setting
from .verdict import Rule

Shows = Mapping[str, tuple[str, str]]  # measure → its figure's title and alternative text
_ALT = "Every value with its null and interval."


class Study:
    """Subclass and fill in; a line in `library/__init__.py`, or `register`, makes it known."""

    registry: ClassVar["Registry[Study]"] = STUDIES
    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()  # fields of the request that this study alone reads
    question: ClassVar[str]
    # of the claims it gives a verdict on, put before the run
    rules: ClassVar[tuple[Rule, ...]] = ()
    method: ClassVar[str]  # definitions and controls, in words and formulas
    control: ClassVar[bool] = True  # some of its measures are taken of untrained controls too
    shows: ClassVar[Shows] = {}  # by default every measure, under its own name
    by_name: ClassVar[bool] = False  # run where it is named, and not among "all studies"
    makes: ClassVar[tuple[str, ...]] = ()  # tables of its own, which `tables` gives
    orders: ClassVar[bool] = False  # its section shows the order in which answers were decoded

    @property
    def decides(self) -> tuple[str, ...]:
        """Numbers of its claims."""
        return tuple(rule.number for rule in self.rules)

    def measures(self, request: Request) -> dict[str, Measure]:
        """Asked of every trace, by a name of their own."""
        return {}

    def controlled(self, request: Request) -> tuple[str, ...]:
        """Names of the measures that are taken of untrained controls too: those that read given texts.

        Controls do not decode: they read what the trained model has decoded. A measure of whole decodings
        costs them a forward for every step, and is left out unless a study names it.
        """
        return tuple(name for name in self.measures(request) if name.endswith((SAME, STATES)))

    def domains(self, request: Request) -> tuple[str, ...]:
        """What is traced: questions, and running prose where a study compares the two."""
        return (QUESTIONS,)

    def settings(self, request: Request) -> Sequence[Setting]:
        """The ways in which questions are asked."""
        return ()

    def experiments(self, request: Request) -> dict[str, Experiment]:
        """Done to every model with the questions of the run, by a name of their own."""
        return {}

    def claims(self, evidence: Evidence) -> Sequence[Claim]:
        return ()

    def findings(self, evidence: Evidence) -> Iterable[str]:
        """A sentence or two per model, written from the numbers."""
        return ()

    def tables(self, evidence: Evidence) -> dict[str, pd.DataFrame]:
        """Tables beside those of measures and experiments, by the names in `makes`."""
        return {}

    def figures(self, evidence: Evidence) -> Sequence[Picture]:
        """The figures of measures and experiments, those of `shows`, for every model."""
        every = [*self.measures(evidence.request), *self.experiments(evidence.request)]
        shows = self.shows or {key: (key, _ALT) for key in every}
        return [
            picture
            for key, (title, alt) in shows.items()
            for picture in of_measure(evidence, key, title, alt)
        ]


def by_default(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Of these names (all that are known), the studies that run where none is named."""
    known = STUDIES if names is None else names
    return tuple(name for name in known if not STUDIES[name].by_name)
