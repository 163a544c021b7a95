"""Map positions of one run to positions of another run: by number, or by region and span.

Only prompts are aligned here; position i of one answer always corresponds to position i of the other.
"""

from itertools import groupby

from ..errors import UsageError
from ..sequences.prompt import Encoded

KINDS = ("positions", "regions")


def partners(prompt: Encoded, other: Encoded, align: str) -> list[int]:
    """Return, for every position of a prompt, the corresponding position of another prompt, or −1 for none.

    With align="regions", the n-th span of a region corresponds to the n-th span of the same region. Spans
    of different lengths are aligned at their ends, because only the last token of a span comes after all
    other tokens of the span.
    """
    if align == "positions":
        if len(prompt.ids) != len(other.ids):
            raise UsageError(
                f"runs aligned by positions need prompts of equal length: this one has {len(prompt.ids)} "
                f"tokens, the source {len(other.ids)}",
                "Use align='regions', or prompts of equal length.",
            )
        return list(range(len(prompt.ids)))
    other_spans = _spans(other)
    partner = [-1] * len(prompt.ids)
    for name, (first, stop) in _spans(prompt).items():
        if name in other_spans:
            start, end = other_spans[name]
            for distance in range(1, min(stop - first, end - start) + 1):
                partner[stop - distance] = end - distance
    return partner


def _spans(prompt: Encoded) -> dict[tuple[str, int], tuple[int, int]]:
    """Map (region, index of the span within the region) to its first and past-the-end position."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    counts: dict[str, int] = {}
    start = 0
    for region, members in groupby(prompt.regions):
        end = start + len(list(members))
        spans[region, counts.setdefault(region, 0)] = start, end
        counts[region] += 1
        start = end
    return spans
