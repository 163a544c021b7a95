"""Define the base class of studies.

A study has a question about one or more models, and names the work that answers the question: measures of
traces, settings in which questions are asked, and experiments on a running model. A plan contains each
measure, setting and experiment once, even if several studies need it. The method `claims` computes verdicts,
`findings` writes sentences from numbers, `figures` draws figures, and `tables` adds tables to those of the
measures. No model is run in this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import pandas as pd

from ..measures.base import Measure
from ..registry import STUDIES, Registry
from .claim import Claim
from .draw import Picture, draw_measure
from .evidence import Evidence
from .experiments.base import Experiment
from .request import Request
from .setting import QUESTIONS, SAME, STATES, Setting
from .verdict import Rule

Shows = Mapping[str, tuple[str, str]]  # measure → its figure's title and alternative text
_ALT = "Every value with its null and interval."


class Study:
    """Base class of studies. Subclass it, and add a line to `library/__init__.py` or call `register`.

    Attributes:
        name: The study's name on the command line.
        question: The question that the study answers, in one sentence.
        rules: The rules of the claims that the study decides, registered before a run; () by default.
        method: Definitions and controls, in words and formulas.
        options: Fields of the request that only this study reads; () by default.
        control: Whether some of the measures are also computed on untrained controls; True by default.
        shows: Title and alternative text of the figure of each measure; by default every measure has a
            figure.
        by_name: Whether the study runs only if it is named, and not among "all studies"; False by default.
        makes: Names of the tables that `tables` returns; () by default.
        orders: Whether the section shows the order in which answers were decoded; False by default.
    """

    registry: ClassVar["Registry[Study]"] = STUDIES
    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()  # fields of the request that this study alone reads
    question: ClassVar[str]
    # of the claims that it decides, registered before the run
    rules: ClassVar[tuple[Rule, ...]] = ()
    method: ClassVar[str]  # definitions and controls, in words and formulas
    control: ClassVar[bool] = True  # some of its measures are also taken of untrained controls
    shows: ClassVar[Shows] = {}  # by default every measure, under its own name
    by_name: ClassVar[bool] = False  # run only if it is named, not among "all studies"
    makes: ClassVar[tuple[str, ...]] = ()  # names of the tables that `tables` returns
    orders: ClassVar[bool] = False  # its section shows the order in which answers were decoded

    @property
    def decides(self) -> tuple[str, ...]:
        """Numbers of the claims that the study decides, such as "9a"."""
        return tuple(rule.number for rule in self.rules)

    def measures(self, request: Request) -> dict[str, Measure]:
        """Return the measures to compute on every trace, by a unique name.

        Args:
            request (Request): The request of the run.
        """
        return {}

    def controlled(self, request: Request) -> tuple[str, ...]:
        """Return the names of the measures that are also computed on untrained controls.

        By default these are the measures of given texts, whose names end in "-same" or "-states". Measures of
        complete decodings cost a control one forward per step; a study has to override this method to name
        them. Controls read the tokens that the trained model has decoded. For measures with `own_tokens`,
        controls read tokens that they have decoded themselves.

        Args:
            request (Request): The request of the run.
        """
        return tuple(name for name in self.measures(request) if name.endswith((SAME, STATES)))

    def domains(self, request: Request) -> tuple[str, ...]:
        """Return the domains to trace: QUESTIONS, and PROSE if the study compares questions with prose.

        Args:
            request (Request): The request of the run.
        """
        return (QUESTIONS,)

    def settings(self, request: Request) -> Sequence[Setting]:
        """Return the settings in which the study asks questions; () by default.

        Args:
            request (Request): The request of the run.
        """
        return ()

    def experiments(self, request: Request) -> dict[str, Experiment]:
        """Return the experiments to run on every model with the run's questions, by a unique name.

        Args:
            request (Request): The request of the run.
        """
        return {}

    def claims(self, evidence: Evidence) -> Sequence[Claim]:
        """Return the study's claims with their verdicts.

        Args:
            evidence (Evidence): What the run measured.
        """
        return ()

    def findings(self, evidence: Evidence) -> Iterable[str]:
        """Return the findings as one or two sentences per model, written from the numbers.

        Args:
            evidence (Evidence): What the run measured.
        """
        return ()

    def tables(self, evidence: Evidence) -> dict[str, pd.DataFrame]:
        """Return additional tables, by the names in `makes`.

        The tables of measures and experiments are written in any case, and are not returned by this method.

        Args:
            evidence (Evidence): What the run measured.
        """
        return {}

    def figures(self, evidence: Evidence) -> Sequence[Picture]:
        """Return the figures of the measures and experiments in `shows`, for every model.

        Args:
            evidence (Evidence): What the run measured.
        """
        keys = [*self.measures(evidence.request), *self.experiments(evidence.request)]
        shows = self.shows or {key: (key, _ALT) for key in keys}
        return [
            picture
            for key, (title, alt) in shows.items()
            for picture in draw_measure(evidence, key, title, alt)
        ]


def by_default(names: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of the studies that run if the user names none; `names` restricts them."""
    candidates = STUDIES if names is None else names
    return tuple(name for name in candidates if not STUDIES[name].by_name)
