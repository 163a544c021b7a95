"""A record: one question, its right answers and the passages that come with it.

Every reader gives records and every condition turns a record into a record, so nothing downstream
knows what a data set looked like. No file is read here, and no text of a prompt is written.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from unicodedata import category

from ..errors import UsageError
from .bad import shown
from .world import Example

_UNSEEN = frozenset("Cc Cf Zs Zl Zp".split())
# Characters that show nothing, though Unicode counts them among letters, marks and symbols.
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | frozenset(
    map(chr, range(0xFE00, 0xFE10))
)


def is_blank(text: str) -> bool:
    """Whether nothing of it can be seen: spaces of any width, controls, marks of direction, fillers."""
    return all(category(c) in _UNSEEN or c in _FILLERS for c in text)


class Asks(StrEnum):
    """What a record asks for. Its prompt and its scores follow from that."""

    WORDS = "words"  # an answer of a few words
    SENTENCES = "sentences"  # an answer in full sentences
    SUMMARY = "summary"  # of its passage
    CONTINUATION = "continuation"  # of the text that stands as its question

    @property
    def has_answer(self) -> bool:
        """Whether an answer can be right or wrong; a summary and a continuation are neither."""
        return self in (Asks.WORDS, Asks.SENTENCES)


@dataclass(frozen=True)
class Passage:
    """A text the model may read. `gold` holds the answer; `needed` leads to it (two-hop questions)."""

    text: str
    title: str = ""
    gold: bool = False
    needed: bool = False

    def __post_init__(self) -> None:
        if is_blank(self.text):
            raise UsageError("a passage is empty", "Give it text, or leave it out.")

    @property
    def kept(self) -> bool:
        """Without it the question cannot be answered from the passages."""
        return self.gold or self.needed


@dataclass(frozen=True)
class Record:
    """A question with answers (any of them is right) and passages in their order.

    `where` is where it was read, for messages. `known` says whether the embedded pair saw the
    facts in training; None where nobody can say. A summary's and a continuation's `answers` are the
    text they are compared with. Records with the same `cluster` (questions about one paragraph or one
    known person) are not independent examples; "" stands for a cluster of its own.
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
        """The index of the (first) gold passage; None where no passage is marked."""
        return next((i for i, passage in enumerate(self.passages) if passage.gold), None)

    @property
    def label(self) -> str:
        """How messages call it: its id, and where it was read."""
        return f"{shown(self.id)} ({self.where})" if self.where else shown(self.id)

    def closed_book(self) -> "Record":
        """The same question without passages."""
        return replace(self, passages=())

    def with_passages(self, passages: Sequence[Passage]) -> "Record":
        return replace(self, passages=tuple(passages))


def gold_text(passages: Sequence[Passage]) -> str:
    """Name the text of the gold passages by a hash, for `Record.cluster`; "" where none is marked."""
    text = "\0".join(passage.text for passage in passages if passage.gold)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if text else ""


def from_world(example: Example, id: str) -> Record:
    """An example of the synthetic world as a record; it keeps the order of the passages."""
    passages = tuple(
        Passage(passage.text, gold=i == example.gold, needed=i in example.evidence)
        for i, passage in enumerate(example.passages)
    )
    # Unseen people are made up for each question: two of one name are two people.
    about = example.subject if example.known else ""
    return Record(
        id, example.question, example.answers, passages, known=example.known, cluster=about
    )
