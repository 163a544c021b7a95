"""Answers: what a model said to every question under one condition, with means and paired differences.

What could not be asked is listed, never dropped in silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..decode import AnySampler
from ..interventions import Intervention
from ..models import Model
from ..sequences.decoding import Decoding, Progress
from ..stats.intervals import SHARES, difference, mean, pair
from .asking import Asking, ask
from .bad import Bad
from .conditions import Condition
from .cut import count, in_doubt, mostly, said
from .keeping import Kept, kept
from .long_scores import LONG_SCORES
from .pool import Pool
from .record import Record
from .scores import counted
from .templates import Template

SCORES = ("exact_match", "contains", "f1")  # right or wrong
EVERY = (*SCORES, *LONG_SCORES)
MEANING = {
    "exact_match": "answers equal to a right answer",
    "contains": "answers that contain a right answer",
    "f1": "words in common with the nearest right answer",
    "rouge_l": "words in common, in order, with the reference text",
    "distinct_4": "different runs of four words",
    "grounded": "content words found in the given text",
}


class Interval(NamedTuple):
    """A mean over questions, or a difference of two, and the ends of its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """What a model answered under one condition.

    `table` has a row a question: its id, its `cluster` (questions about one paragraph share it, and their
    mean counts once in an interval), the right `answers`, the prediction, which of them `counted` as
    said ("" if none), the three scores, the steps taken, the masks offered, the tokens of the prompt, and
    whether the answer was `cut` off by its length (no end token in it; None for a model without one, and
    for a continuation); `gold` is the place of the gold passage. Long answers also have ROUGE-L,
    the share of distinct 4-grams, the share of content words that stand in what was given (`grounded`),
    and their `content_tokens`; a score that has no meaning for what was asked is None. `left_out` says
    which questions could not be asked.
    """

    model: str
    condition: Condition
    sampler: str
    template: str
    intervention: str
    table: pd.DataFrame
    decodings: list[Decoding]
    left_out: tuple[Bad, ...] = ()

    def __repr__(self) -> str:
        """Name the model and the condition; give n and the mean of the main score with its interval."""
        about = f"{self.model}, {self.condition.name}"
        about += f", {self.intervention}" if self.intervention else ""
        means = ""
        if self.scores:
            score = self.scores[0]
            value, low, high = (f"{100 * x:.3g}" for x in self.mean(score))
            means = f", mean {score} {value} % [{low}, {high}] ({MEANING[score]})"
        left_out = f", {len(self.left_out)} left out" if self.left_out else ""
        return f"Answers({about}: n = {self.n}{means}{left_out})"

    @property
    def n(self) -> int:
        return len(self.table)

    @property
    def scores(self) -> tuple[str, ...]:
        """The scores that have a meaning here, the one that says most first."""
        there = [s for s in EVERY if s in self.table and self.table[s].notnull().any()]
        return tuple(sorted(there, key=lambda s: s not in ("contains", "rouge_l")))

    def mean(self, what: str = "contains", *, level: float = 0.95) -> Interval:
        """Return a score's mean over questions (a share of 1) with the ends of its interval.

        The default score is `contains`: 1 where the answer contains a right answer, else 0.
        """
        values, clusters = self.table[what].to_numpy(float), self.table["cluster"].to_numpy()
        return _numbers(mean(values, bounds=SHARES, level=level, clusters=clusters))

    def minus(self, other: "Answers", what: str = "contains", *, level: float = 0.95) -> Interval:
        """This mean minus the other's, paired by id over the questions that both were asked."""
        tables = (self.table, other.table)
        _, places = pair(*([str(i) for i in table["id"]] for table in tables))
        a, b = (t[what].to_numpy(float)[at] for t, at in zip(tables, places, strict=True))
        clusters = self.table["cluster"].to_numpy()[places[0]]
        return _numbers(difference(a, b, level=level, bounds=SHARES, clusters=clusters))

    @property
    def cut_off(self) -> str:
        """What is said where more than half of the answers were cut off by their length, else ""."""
        cut = self.table["cut"].to_numpy()
        right = self.table["contains"]
        if "content_tokens" in self.table and right.notnull().any():  # answers in sentences
            doubt = mostly(in_doubt(cut, right.fillna(0)))
        else:
            doubt = mostly(cut)
        return said(cut, int(self.table["masks"].iloc[0])) if doubt else ""

    def summary(self) -> dict[str, object]:
        """One line of a table: what was asked how, and each score with its interval."""
        line: dict[str, object] = {
            "model": self.model,
            "condition": self.condition.name,
            "intervention": self.intervention,
            "sampler": self.sampler,
            "n": self.n,
            "left_out": len(self.left_out),
            "steps": float(self.table["steps"].mean()),
            "cut": count(self.table["cut"].to_numpy()),
        }
        for what in (s for s in EVERY if s in self.scores):
            line[what], line[f"{what}_low"], line[f"{what}_high"] = self.mean(what)
        return line


def _numbers(interval: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Interval:
    return Interval(*(float(x) for x in interval))


def evaluate(
    model: Model,
    records: Sequence[Record],
    sampler: AnySampler | None = None,
    *,
    condition: Condition | None = None,
    template: Template | None = None,
    intervention: Intervention | None = None,
    pool: Sequence[Record] | Pool | None = None,
    batch_size: int = 8,
    skip_bad: bool = False,
    progress: Progress | None = None,
    keep: Kept | Path | str | None = None,
) -> Answers:
    """Ask `model` every record under a condition, with an intervention in force if one is given.

    Args:
        sampler: how to decode; its `length` is the number of masks, the same for every question.
        condition: what is done to the passages first; as they are by default.
        template: the world's layout for the world's questions, else the plain one.
        intervention: in force while decoding.
        pool: the records from which distractors, noise and conflicts are drawn; these by default.
        batch_size: questions decoded together, shortest first; the answers do not depend on it.
        skip_bad: leave out questions that cannot be asked (too long, no passages) and list them.
        progress: called with (questions done, questions in all).
        keep: a directory that keeps each batch of answers as it comes; the same call, made again
            after a stop, asks the rest alone. Answers to another question there are an error.
    """
    options = dict(locals())
    if isinstance(keep, Path | str):
        with kept(keep) as answers:
            return evaluate(**options | {"keep": answers})
    del options["records"]
    asked = ask(Asking(**options), records)
    table = pd.DataFrame(asked.scored)
    right = zip(table["prediction"], table["answers"], table["contains"], strict=True)
    why = [counted(said, answers) if contains else "" for said, answers, contains in right]
    table.insert(list(table).index("prediction") + 1, "counted", why)
    return Answers(
        model=model.name,
        condition=condition or Condition(),
        sampler=asked.sampler.describe(),
        template=repr(asked.template),
        intervention=intervention.describe() if intervention else "",
        table=table,
        decodings=asked.decodings,
        left_out=tuple(asked.left_out),
    )
