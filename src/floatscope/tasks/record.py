"""Define a record: one question with its right answers and its passages.

Every reader returns records, and every condition turns a record into a record. The code that uses records
therefore does not depend on the format of a data set. This module reads no file and writes no prompt.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from unicodedata import category

from ..errors import UsageError
from .invalid_record import shown
from .world import Example

_UNSEEN = frozenset("Cc Cf Zs Zl Zp".split())
# Invisible characters that Unicode counts among letters, marks and symbols.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(
    map(chr, range(0xFE00, 0xFE10))
)


def is_blank(text: str) -> bool:
    """Return whether a text is empty or has only spaces, control characters, direction marks or fillers."""
    return all(category(c) in _UNSEEN or c in _FILLERS for c in text)


class Asks(StrEnum):
    """The kind of text that a record asks for, which determines its prompt and its scores.

    - `WORDS` = "words": an answer of a few words
    - `SENTENCES` = "sentences": an answer in full sentences
    - `SUMMARY` = "summary": a summary of the record's passage
    - `CONTINUATION` = "continuation": a continuation of the text in the record's field `question`
    """

    WORDS = "words"  # an answer of a few words
    SENTENCES = "sentences"  # an answer in full sentences
    SUMMARY = "summary"  # of its passage
    CONTINUATION = "continuation"  # of the text in the field `question`

    @property
    def has_answer(self) -> bool:
        """Whether answers can be right or wrong; False for a summary and a continuation."""
        return self in (Asks.WORDS, Asks.SENTENCES)


@dataclass(frozen=True)
class Passage:
    """A text that the model may read.

    Args:
        text (str): The text; it must not be blank.
        title (str): The title; "" by default.
        gold (bool): Whether the passage contains the answer; False by default.
        needed (bool): Whether the answer depends on the passage, as it depends on the first passage of a
            two-hop question; False by default.
    """

    text: str
    title: str = ""
    gold: bool = False
    needed: bool = False

    def __post_init__(self) -> None:
        if is_blank(self.text):
            raise UsageError("a passage is empty", "Give it text, or leave it out.")

    @property
    def is_required(self) -> bool:
        """Whether the passage is necessary to answer the question: it is `gold` or `needed`."""
        return self.gold or self.needed


@dataclass(frozen=True)
class Record:
    """A question with its right answers and its passages.

    Args:
        id (str): Name of the record, unique in its data set.
        question (str): The question; for a continuation, the text to continue.
        answers (tuple of str): One or more alternative right answers. For a summary or a continuation, the
            reference texts with which the model's text is compared.
        passages (tuple of Passage): The passages, in order; () by default.
        where (str): File and line of the record, for error messages; "" by default.
        known (bool): Whether the embedded pair saw the facts in training; None (by default) if this is
            unknown.
        asks (Asks): The kind of text that the record asks for; `Asks.WORDS` by default.
        cluster (str): Name of a group of records that are not independent examples, such as questions about
            one paragraph or one person. A record with "" (the default) forms a group of its own.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...] = ()
    where: str = ""
    known: bool | None = None
    asks: Asks = Asks.WORDS
    cluster: str = ""

    def __post_init__(self) -> None:
        if is_blank(self.question):
            raise UsageError(f"record {self.label}: the question is empty", "Give one.")
        if not self.answers or any(map(is_blank, self.answers)):
            raise UsageError(
                f"record {self.label} has no answer, or an empty one",
                "Give at least one right answer.",
            )

    @cached_property
    def gold(self) -> int | None:
        """Index of the first gold passage; None if no passage is marked as gold."""
        return next((i for i, passage in enumerate(self.passages) if passage.gold), None)

    @property
    def label(self) -> str:
        """Description of the record in messages: its id, file and line."""
        return f"{shown(self.id)} ({self.where})" if self.where else shown(self.id)

    def closed_book(self) -> "Record":
        """Return the same question without passages."""
        return replace(self, passages=())

    def with_passages(self, passages: Sequence[Passage]) -> "Record":
        """Return the same question with other passages.

        Args:
            passages (sequence of Passage): The passages, in order.
        """
        return replace(self, passages=tuple(passages))


def gold_text(passages: Sequence[Passage]) -> str:
    """Return a hash of the gold passages' text, for `Record.cluster`; "" if no passage is marked as gold."""
    text = "\0".join(passage.text for passage in passages if passage.gold)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if text else ""


def from_world(example: Example, id: str) -> Record:
    """Turn an example of the synthetic world into a record, with its passages in the same order.

    Args:
        example (Example): The example.
        id (str): Name of the record.
    """
    passages = tuple(
        Passage(passage.text, gold=i == example.gold, needed=i in example.evidence)
        for i, passage in enumerate(example.passages)
    )
    # Unseen people are invented for each question: two with the same name are two people.
    about = example.subject if example.known else ""
    return Record(
        id, example.question, example.answers, passages, known=example.known, cluster=about
    )
