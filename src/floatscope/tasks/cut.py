"""Find and count answers that were cut off because they reached their length.

A complete answer ends with an end token. An answer of `length` tokens without an end token was cut off: its
end is unknown, and counting the answer as wrong would measure the length. For a model without end tokens, and
for a continuation, it is unknown (None) whether an answer was cut off. A long answer that was cut off counts
as right if its text already contains a right answer; otherwise the answer is in doubt (`in_doubt`). This
module computes no scores.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

Column = Collection[Any]  # True, False or None for each answer, as a list or an array
MOST = 0.5  # share of cut answers above which accuracy is not interpretable
REMEDY = "Give a longer length (--length)."


def was_cut(answer_ids: Sequence[int], end_ids: Sequence[int]) -> bool | None:
    """Return whether an answer was cut off (has no end token); None for a model without end tokens."""
    return not set(answer_ids) & set(end_ids) if end_ids else None


def in_doubt(cut: Iterable[Any], right: Iterable[Any]) -> list[bool | None]:
    """Return, per answer, whether it was cut off before it contained a right answer; None if unknown."""
    pairs = zip(cut, right, strict=True)
    return [None if cut_off is None else bool(cut_off) and not good for cut_off, good in pairs]


def count(cut: Column) -> int:
    """Count the answers that are known to have been cut off."""
    return sum(bool(cut_off) for cut_off in cut if cut_off is not None)


def mostly(cut: Column) -> bool:
    """Return whether more than half of the answers are known to have been cut off."""
    return count(cut) > MOST * len(cut)


def describe(cut: Column, length: int) -> str:
    """Return a clause such as "3 of 20 answers were cut off at 16 tokens", for a message."""
    return f"{count(cut)} of {len(cut)} answers were cut off at {length} tokens"
