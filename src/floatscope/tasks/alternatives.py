"""Gold answers that seem to hold several in one text: "1984 or 1985", "colour; color", "movie / film".

A score takes such a text as one answer, and "1984" is then wrong. Whether it means two answers or is one
("Trinidad and Tobago", "AC/DC", "Truth or Dare") no rule can tell, so that nothing is split unless
somebody asks for it; but it is counted and shown. Split, the parts are right beside the whole: a score can
only rise.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .bad import shown
from .record import Record

# "and" joins one answer more often than it lists two; so does a slash between short words (km/h, AC/DC, 1/2).
_BETWEEN = re.compile(r"\s+or\s+|\s*;\s+|\s+/\s+|(?<=[^\W\d_]{3})/(?=[^\W\d_]{3})")
_NAMED = 3  # examples in a message


def alternatives(answer: str) -> tuple[str, ...]:
    """The parts of a gold answer that reads like several; () of one that does not."""
    parts = [part.strip(" ,") for part in _BETWEEN.split(answer)]
    parts = [part for part in parts if any(map(str.isalnum, part))]
    return tuple(dict.fromkeys(parts)) if len(parts) > 1 else ()


def split(record: Record) -> Record:
    """The record with the parts of such answers as right answers too, after the whole ones."""
    more = [part for answer in record.answers for part in alternatives(answer)]
    return replace(record, answers=tuple(dict.fromkeys([*record.answers, *more])))


def said(golds: Mapping[str, Iterable[str]]) -> str:
    """Of answers by record: how many seem to hold several, with examples and the remedy; "" if none."""
    several = {
        name: next(answer for answer in answers if alternatives(answer))
        for name, answers in ((name, list(answers)) for name, answers in golds.items())
        if any(map(alternatives, answers))
    }
    if not several:
        return ""
    some = "; ".join(f"{name}: {shown(answer)}" for name, answer in list(several.items())[:_NAMED])
    more = ", …" * (len(several) > _NAMED)
    return (
        f"{len(several)} of {len(golds)} records have a gold answer that seems to hold several, and counts "
        f"as one text ({some}{more}). To count each part as right too: --split-alternatives "
        "(split_alternatives=True)."
    )
