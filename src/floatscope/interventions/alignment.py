"""Which position of another run a position corresponds to: by place, or span by span.

Answers correspond place by place. Nothing is patched here.
"""

from itertools import groupby

from ..errors import UsageError
from ..sequences.prompt import Encoded

KINDS = ("positions", "regions")


def partners(own: Encoded, other: Encoded, align: str) -> list[int]:
    """For every position of a prompt that of the other one, −1 where there is none.

    By "regions": the spans of a region in order, the first with the first; within a span tokens correspond
    from its end, where two spans differ in length (its last token is where a span has been read whole).
    """
    if align == "positions":
        if len(own.ids) != len(other.ids):
            raise UsageError(
                f"runs aligned by positions need prompts of one length: this one has {len(own.ids)} "
                f"tokens, the source {len(other.ids)}",
                "Use align='regions', or prompts of one length.",
            )
        return list(range(len(own.ids)))
    there = _spans(other)
    found = [-1] * len(own.ids)
    for name, (first, stop) in _spans(own).items():
        if name in there:
            start, end = there[name]
            for back in range(1, min(stop - first, end - start) + 1):
                found[stop - back] = end - back
    return found


def _spans(prompt: Encoded) -> dict[tuple[str, int], tuple[int, int]]:
    """(region, number of the span of that region) → first and past-the-end position."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    counts: dict[str, int] = {}
    start = 0
    for region, some in groupby(prompt.regions):
        end = start + len(list(some))
        spans[region, counts.setdefault(region, 0)] = start, end
        counts[region] += 1
        start = end
    return spans
