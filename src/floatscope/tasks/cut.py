"""Answers cut off by their length: which they are, and what is said of them.

An answer ends with an end token. One that has none within its `length` was cut off: what it would
have said is not known, and to count it as wrong measures the length. A model without end tokens
never ends, and a continuation has no end: there it is unknown (None). Nothing is scored here.

Which answers the rule is for: a few words must come to their end; a text that goes on has none. A long
answer that was cut off is right all the same where a right answer stands in it already; only the others
are in doubt (`in_doubt`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

Column = Collection[Any]  # True, False or None for each answer, as a list or an array
MOST = 0.5  # of answers: with more than this cut off, a share of right ones says little
REMEDY = "Give a longer length (--length)."


def was_cut(answer_ids: Sequence[int], end_ids: Sequence[int]) -> bool | None:
    """Whether no end token stands in the answer; None for a model that has none."""
    return not set(answer_ids) & set(end_ids) if end_ids else None


def in_doubt(cut: Iterable[Any], right: Iterable[Any]) -> list[bool | None]:
    """Of answers in sentences: which were cut off before a right answer stood in them."""
    pairs = zip(cut, right, strict=True)
    return [None if one is None else bool(one) and not good for one, good in pairs]


def count(cut: Column) -> int:
    """How many are known to have been cut off."""
    return sum(bool(one) for one in cut if one is not None)


def mostly(cut: Column) -> bool:
    """Whether more than half are known to have been cut off."""
    return count(cut) > MOST * len(cut)


def said(cut: Column, length: int) -> str:
    """As a sentence has it."""
    return f"{count(cut)} of {len(cut)} answers were cut off at {length} tokens"
