"""Ask a model questions under one condition, and compute means and paired differences of the scores.

Questions that could not be asked are listed in `Answers.left_out`.
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
from .asking import EvaluationSetup, ask
from .conditions import Condition
from .cut import count, describe, in_doubt, mostly
from .invalid_record import InvalidRecord
from .keeping import AnswerStore, open_answers
from .long_scores import LONG_SCORES
from .pool import Pool
from .record import Record
from .scores import matched_answer
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
    """A mean over questions, or a difference of two means, with the limits of its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class Answers:
    """The answers of a model under one condition, with scores.

    Args:
        model (str): The model's name.
        condition (Condition): The changes to the passages.
        sampler (str): The sampler with its settings.
        template (str): The template with its settings.
        intervention (str): The intervention with its settings; "" for none.
        table (pd.DataFrame): A row per question. The first columns are the `id`; the `cluster` (questions
            about one paragraph have the same cluster, and their mean counts once in an interval); the right
            `answers`; the `prediction`; and the right answer that the prediction contains (`counted`; "" if
            the prediction contains no right answer). The scores are `exact_match`, `contains` and `f1`.
            Further columns are the number of `steps`, the number of `masks`, the number of `prompt_tokens`,
            and the index of the `gold` passage. The column `cut` states whether the answer was cut off by its
            length, that is, has no end token; it is None for a model without end tokens and for a
            continuation. Long answers also have the columns `rouge_l`, `distinct_4` (share of distinct
            4-grams), `grounded` (share of content words that occur in the given text) and `content_tokens`. A
            score that does not apply is None.
        decodings (list of Decoding): The decoding of each question, in the order of the table.
        left_out (tuple of InvalidRecord): The questions that could not be asked, each with the reason; () by
            default.
    """

    model: str
    condition: Condition
    sampler: str
    template: str
    intervention: str
    table: pd.DataFrame
    decodings: list[Decoding]
    left_out: tuple[InvalidRecord, ...] = ()

    def __repr__(self) -> str:
        """Return one line with model, condition, n, and the mean of the main score with its interval."""
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
        """Number of questions that were asked."""
        return len(self.table)

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores that apply to these answers, the main score first."""
        present = [s for s in EVERY if s in self.table and self.table[s].notnull().any()]
        return tuple(sorted(present, key=lambda s: s not in ("contains", "rouge_l")))

    def mean(self, score: str = "contains", *, level: float = 0.95) -> Interval:
        """Return a score's mean over questions, from 0 to 1, with the limits of its confidence interval.

        Args:
            score (str): Name of the score. By default "contains": 1 if the answer contains a right answer,
                else 0.
            level (float): Level of the interval; 0.95 by default.
        """
        values, clusters = self.table[score].to_numpy(float), self.table["cluster"].to_numpy()
        return _numbers(mean(values, bounds=SHARES, level=level, clusters=clusters))

    def minus(self, other: "Answers", score: str = "contains", *, level: float = 0.95) -> Interval:
        """Return the mean score of these answers minus that of `other`, paired by question.

        Args:
            other (Answers): The other answers. Only questions that were asked in both evaluations count;
                questions are matched by their id.
            score (str): Name of the score; "contains" by default.
            level (float): Level of the interval; 0.95 by default.

        Returns:
            The difference, from −1 to 1, with the limits of its confidence interval.
        """
        tables = (self.table, other.table)
        _, places = pair(*([str(i) for i in table["id"]] for table in tables))
        a, b = (t[score].to_numpy(float)[place] for t, place in zip(tables, places, strict=True))
        clusters = self.table["cluster"].to_numpy()[places[0]]
        return _numbers(difference(a, b, level=level, bounds=SHARES, clusters=clusters))

    @property
    def cut_off(self) -> str:
        """A notice if more than half of the answers were cut off by their length; "" otherwise."""
        cut = self.table["cut"].to_numpy()
        right = self.table["contains"]
        if "content_tokens" in self.table and right.notnull().any():  # answers in sentences
            doubt = mostly(in_doubt(cut, right.fillna(0)))
        else:
            doubt = mostly(cut)
        return describe(cut, int(self.table["masks"].iloc[0])) if doubt else ""

    def summary(self) -> dict[str, object]:
        """Return a table row: model, settings, n, mean steps, cut answers, and scores with intervals."""
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
        for score in (s for s in EVERY if s in self.scores):
            line[score], line[f"{score}_low"], line[f"{score}_high"] = self.mean(score)
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
    keep: AnswerStore | Path | str | None = None,
) -> Answers:
    """Ask a model the questions of all records under one condition, and score the answers.

    Args:
        model (Model): A loaded model.
        records (sequence of Record): The records with the questions, one or more.
        sampler (Sampler): The sampler; its `length` is the number of masks, which is the same for every
            question. By default the sampler that fits the model.
        condition (Condition): Changes to the passages; by default no changes.
        template (Template): Layout of the prompt. By default the layout of the synthetic world if all records
            are from the synthetic world, else `PlainTemplate()`.
        intervention (Intervention): Intervention that is active during decoding; None by default.
        pool (sequence of Record or Pool): Records from which distractors, noise and conflicts are drawn; by
            default `records`.
        batch_size (int): Number of questions that are decoded together, shortest prompts first; 8 by default.
            The answers do not depend on this number.
        skip_bad (bool): Whether questions that cannot be asked (too long, no passages) are left out and
            listed. By default such questions raise an error.
        progress (callable): Called with (questions done, questions in all).
        keep (Path or str): A directory that stores each batch of answers. The same call, repeated after an
            interruption, asks only the remaining questions. If the directory contains answers to other
            questions, an error is raised.

    Returns:
        The answers, with a table of scores.

    Example:
        `fs.evaluate(model, fs.tasks.named_records("world:nine", 40)).mean()`
    """
    options = dict(locals())
    if isinstance(keep, Path | str):
        with open_answers(keep) as answers:
            return evaluate(**options | {"keep": answers})
    del options["records"]
    answered = ask(EvaluationSetup(**options), records)
    table = pd.DataFrame(answered.scored)
    right = zip(table["prediction"], table["answers"], table["contains"], strict=True)
    why = [
        matched_answer(prediction, answers) if contains else ""
        for prediction, answers, contains in right
    ]
    table.insert(list(table).index("prediction") + 1, "counted", why)
    return Answers(
        model=model.name,
        condition=condition or Condition(),
        sampler=answered.sampler.describe(),
        template=repr(answered.template),
        intervention=intervention.describe() if intervention else "",
        table=table,
        decodings=answered.decodings,
        left_out=tuple(answered.left_out),
    )
