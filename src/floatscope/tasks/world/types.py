"""Define the data types of the generator: passages, questions, examples, and the settings of a level.

The types are frozen dataclasses. Places in a text are character spans. This module generates no text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal

from .layout import Parts, prompt_parts

Span = tuple[int, int]  # start and end offsets in characters, end exclusive
AnswerLength = Literal["any", "short", "long"]

MAX_PASSAGES = 24
RANGES: dict[str, tuple[int, int]] = {
    "passages": (1, MAX_PASSAGES),
    "confusable": (0, MAX_PASSAGES - 1),
    "hops": (1, 2),
    "conflicts": (0, 4),
    "noise": (0, MAX_PASSAGES - 1),
    "questions": (1, 24),
    "rivals": (0, 11),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement in a passage; spans are offsets into that passage's text."""

    subject: str
    attribute: str
    value: str
    sentence: Span
    span: Span  # of the value
    rumour: bool = False


@dataclass(frozen=True, slots=True)
class Passage:
    """A text of a context: a text about an entity, a rumour about an entity, or natural text as noise."""

    text: str
    facts: tuple[Fact, ...]
    kind: Literal["entity", "rumour", "noise"] = "entity"


@dataclass(frozen=True, slots=True)
class Question:
    """A question that one fact of a context answers."""

    text: str
    answers: tuple[str, ...]
    subject: str
    attribute: str
    hops: int
    gold: int  # index of the passage with the answer
    fact: Fact  # the statement in that passage
    evidence: tuple[int, ...]  # passages needed, in the order of the hops; the last is `gold`


@dataclass(frozen=True, slots=True)
class Context:
    """Passages with one or more questions about them."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    known: bool


@dataclass(frozen=True)
class Example:
    """One question with its passages; without passages, the question can only be answered from memory."""

    question: str
    passages: tuple[Passage, ...]
    gold: int | None
    answers: tuple[str, ...]
    subject: str
    attribute: str
    known: bool
    hops: int
    evidence: tuple[int, ...]
    fact: Fact | None

    @classmethod
    def from_context(cls, context: Context, index: int = 0) -> Example:
        q = context.questions[index]
        return cls(
            q.text,
            context.passages,
            q.gold,
            q.answers,
            q.subject,
            q.attribute,
            context.known,
            q.hops,
            q.evidence,
            q.fact,
        )

    @property
    def gold_sentence(self) -> Span | None:
        """Offsets of the sentence with the answer in the gold passage's text; None without passages."""
        return self.fact.sentence if self.fact else None

    @property
    def answer_span(self) -> Span | None:
        """Offsets of the answer in the gold passage's text; None without passages."""
        return self.fact.span if self.fact else None

    def closed_book(self) -> Example:
        """Return the same question without passages."""
        return replace(self, passages=(), gold=None, evidence=(), fact=None)

    def parts(self) -> Parts:
        """Return the prompt as (name, text) pairs; see `layout`."""
        return prompt_parts(self.question, [p.text for p in self.passages])


@dataclass(frozen=True)
class Level:
    """The settings of a task in the world; a value out of range raises an error that names the setting.

    Args:
        passages (int): Number of passages in the prompt; 9 by default.
        gold (int): Index of the gold passage, from 0; None (by default) for any index.
        confusable (int): Number of distractors that share a first name or surname with the subject; 0 by
            default.
        hops (int): Number of hops: 2 for a question about an entity that another passage names; 1 by default.
        conflicts (int): Number of passages that state another value for the same subject and attribute,
            marked as rumour or error; the plain statement is right; 0 by default.
        noise (int): Number of passages of natural text; 0 by default.
        answer (str): Length of the answer: "short" for one word, "long" for two or more words, "any" by
            default.
        questions (int): Number of questions about the same passages; 1 by default.
        rivals (int): With two hops, number of pairs of distractors that are like the pair with the answer
            (same kinds, same relation, same attribute), so that the attribute alone does not identify the
            answer; 0 by default.
    """

    passages: int = 9
    gold: int | None = None
    confusable: int = 0
    hops: int = 1
    conflicts: int = 0
    noise: int = 0
    answer: AnswerLength = "any"
    questions: int = 1
    # not in the text that seeds draws, so that old draws stay the same
    rivals: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for dial in fields(self):
            if dial.name in RANGES:
                low, high = RANGES[dial.name]
                value = getattr(self, dial.name)
                if (
                    isinstance(value, bool)
                    or not isinstance(value, int)
                    or not low <= value <= high
                ):
                    raise ValueError(
                        f"{dial.name} = {value!r}: give a whole number from {low} to {high}"
                    )
        if self.answer not in ("any", "short", "long"):
            raise ValueError(f"answer = {self.answer!r}: give 'any', 'short' or 'long'")
        if self.gold is not None and not 0 <= self.gold < self.passages:
            raise ValueError(
                f"gold = {self.gold!r}: give None or a whole number from 0 to "
                f"{self.passages - 1} (passages = {self.passages})"
            )
        if self.rivals and self.hops != 2:
            raise ValueError(f"rivals = {self.rivals}: give hops = 2 as well, or 0")
        used = self.hops + self.conflicts + self.noise + 2 * self.rivals
        if used > self.passages:
            raise ValueError(
                f"passages = {self.passages}: hops + conflicts + noise + 2 × rivals already take "
                f"{used}; give passages from {used} to {MAX_PASSAGES}"
            )
        free = self.passages - used
        if self.confusable > free:
            raise ValueError(
                f"confusable = {self.confusable}: give a whole number from 0 to "
                f"{free}, the distractors that passages = {self.passages} leaves"
            )


LEVELS: dict[str, Level] = {
    "one": Level(passages=1),
    "three": Level(passages=3),
    "four": Level(passages=4),
    "nine": Level(passages=9),
    "many": Level(passages=24),
    "names": Level(passages=9, confusable=8),
    "hops": Level(passages=9, hops=2),
    "rivals": Level(passages=4, hops=2, rivals=1),
    "conflict": Level(passages=9, conflicts=2),
    "noise": Level(passages=9, noise=4),
    "long": Level(passages=9, answer="long"),
    "hard": Level(passages=24, confusable=12, hops=2, conflicts=3),
}
