"""Draw passages and answers of other records, in an order that a hash of the texts determines.

Texts are sorted by a hash of (key, text). This order is as good as a random shuffle, and does not depend on
the order of the pool. A larger draw contains every smaller draw with the same key.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TypeVar

from ..errors import UsageError
from ..sequences.token_classes import FUNCTION_WORDS
from .record import Passage, Record
from .scores import contains, normalise

T = TypeVar("T")


def ranked(items: Iterable[T], text: Callable[[T], str], key: str) -> list[T]:
    """Return the items sorted by a hash of the key and of each item's text."""

    def digest(item: T) -> bytes:
        return hashlib.blake2b(f"{key}\0{text(item)}".encode(), digest_size=8).digest()

    return sorted(items, key=digest)


class Pool:
    """Passages and answers of many records, to draw from.

    Args:
        records (sequence of Record): The records. Each record contributes its gold passage, or all its
            passages if no passage is marked as gold.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = tuple(records)

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """The passages to draw from: each text once, with `gold` and `needed` set to False."""
        passages: dict[str, Passage] = {}
        for record in self.records:
            chosen = record.passages if record.gold is None else (record.passages[record.gold],)
            for passage in chosen:
                passages.setdefault(passage.text, replace(passage, gold=False, needed=False))
        return tuple(passages.values())

    @staticmethod
    def may_distract(passage: Passage, record: Record) -> bool:
        """Return whether a passage contains no right answer in its text or title, after normalisation.

        Args:
            passage (Passage): The passage.
            record (Record): The record with the right answers.
        """
        texts = (passage.text, passage.title)
        return not any(contains(text, record.answers) for text in texts)

    def distractors(
        self, record: Record, count: int, seed: int, excluded: Sequence[Passage] = ()
    ) -> list[Passage]:
        """Draw passages of other records that do not answer this record's question.

        Args:
            record (Record): The record.
            count (int): Number of passages.
            seed (int): Seed of the draw.
            excluded (sequence of Passage): Passages that must not be drawn again; () by default.

        Raises:
            UsageError: If the pool has fewer than `count` such passages.
        """
        return self._draw(
            record, count, f"distractors {seed}", excluded, "no answer", lambda p: True
        )

    def irrelevant(
        self, record: Record, count: int, seed: int, excluded: Sequence[Passage] = ()
    ) -> list[Passage]:
        """Draw passages of other records that contain no right answer and no content word of the question.

        Args:
            record (Record): The record.
            count (int): Number of passages.
            seed (int): Seed of the draw.
            excluded (sequence of Passage): Passages that must not be drawn again; () by default.

        Raises:
            UsageError: If the pool has fewer than `count` such passages.
        """
        question_words = content_words(record.question)
        criterion = "neither an answer nor a content word of the question"

        def fits(passage: Passage) -> bool:
            return not question_words & content_words(f"{passage.title} {passage.text}")

        return self._draw(record, count, f"irrelevant {seed}", excluded, criterion, fits)

    def _draw(
        self,
        record: Record,
        count: int,
        key: str,
        excluded: Sequence[Passage],
        criterion: str,
        fits: Callable[[Passage], bool],
    ) -> list[Passage]:
        if count <= 0:
            return []
        used = {passage.text for passage in (*record.passages, *excluded)}
        order = ranked(self.passages, lambda p: p.text, f"{key} {record.id}")
        unused = (p for p in order if p.text not in used and fits(p))
        drawn = list(islice((p for p in unused if self.may_distract(p, record)), count))
        if len(drawn) < count:
            raise UsageError(
                f"record {record.label} needs {count} more passages with {criterion}; among "
                f"{len(self.records)} records there are {len(drawn)}",
                "Ask for fewer passages, or give more records to draw from.",
            )
        return drawn

    def wrong_answers(self, record: Record, seed: int) -> Iterator[str]:
        """Yield wrong answers from other records; the answers most similar in form come first.

        An answer is skipped if it contains a right answer or if a right answer contains it.

        Args:
            record (Record): The record.
            seed (int): Seed of the order among answers of the same form.
        """
        right_answers = record.answers
        answers = dict.fromkeys(r.answers[0] for r in self.records if r.id != record.id)
        shape = _shape(right_answers[0])
        order = ranked(answers, str, f"wrong {seed} {record.id}")
        for answer in sorted(order, key=lambda a: _shape(a) != shape):
            overlap = contains(answer, right_answers) or any(
                contains(a, [answer]) for a in right_answers
            )
            if normalise(answer) and not overlap:
                yield answer


def contradiction(
    record: Record, gold: Passage, count: int, pool: Pool, seed: int
) -> list[Passage]:
    """Return `count` copies of the gold passage, in each of which a wrong answer replaces the right one."""
    if not count:
        return []
    # Longest first: "New York City" must not become "<wrong> City".
    aliases = sorted(record.answers, key=len, reverse=True)
    answer = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, aliases))})(?!\w)", re.IGNORECASE)
    if not answer.search(gold.text):
        raise UsageError(
            f"record {record.label}: its gold passage does not contain the answer literally, so "
            "nothing in it can be contradicted",
            "Leave the record out of conditions with conflicts.",
        )
    replacements = (wrong.replace("\\", r"\\") for wrong in pool.wrong_answers(record, seed))
    copies = (Passage(answer.sub(x, gold.text), answer.sub(x, gold.title)) for x in replacements)
    conflicts = list(islice((copy for copy in copies if pool.may_distract(copy, record)), count))
    if len(conflicts) < count:
        raise UsageError(
            f"record {record.label} needs {count} conflicting passages; {len(conflicts)} could be made from "
            f"the answers of {len(pool.records)} records",
            "Ask for fewer conflicts, give more records to draw from, or leave the record out if its "
            "gold passage also spells the answer in another way.",
        )
    return conflicts


def content_words(text: str) -> frozenset[str]:
    """Return the normalised words of a text that are not function words."""
    return frozenset(normalise(text).split()) - FUNCTION_WORDS


def _shape(answer: str) -> tuple[bool, bool, bool]:
    """Return the form of an answer: whether it has a digit, begins with a capital, and has a space."""
    has_digit = any(c.isdigit() for c in answer)
    return has_digit, answer[:1].isupper(), " " in answer.strip()
