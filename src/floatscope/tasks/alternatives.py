"""Find gold answers that seem to contain several alternatives in one text, such as "1984 or 1985".

A score treats such a text as a single answer, so that the prediction "1984" counts as wrong. No rule can tell
whether a text contains several answers or one answer ("Trinidad and Tobago", "AC/DC", "Truth or Dare"). A
text is therefore split only if the user requests it; otherwise such texts are counted and reported. The parts
are accepted as right in addition to the whole text, so that splitting can only raise a score.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .invalid_record import shown
from .record import Record

# "and" joins one answer more often than it lists two; so does a slash between short words (km/h, AC/DC, 1/2).
_BETWEEN = re.compile(r"\s+or\s+|\s*;\s+|\s+/\s+|(?<=[^\W\d_]{3})/(?=[^\W\d_]{3})")
_NAMED = 3  # examples in a message


def alternatives(answer: str) -> tuple[str, ...]:
    """Split a gold answer such as "1984 or 1985" into its parts; return () if it has a single part."""
    parts = [part.strip(" ,") for part in _BETWEEN.split(answer)]
    parts = [part for part in parts if any(map(str.isalnum, part))]
    return tuple(dict.fromkeys(parts)) if len(parts) > 1 else ()


def split(record: Record) -> Record:
    """Return a copy of the record that also accepts each part of its gold answers as right."""
    parts = [part for answer in record.answers for part in alternatives(answer)]
    return replace(record, answers=tuple(dict.fromkeys([*record.answers, *parts])))


def describe(golds: Mapping[str, Iterable[str]]) -> str:
    """Return a notice that counts records with a gold answer of several parts; "" without such records.

    `golds` maps the name of each record to its gold answers. The notice contains examples and a remedy.
    """
    several = {
        name: next(answer for answer in answers if alternatives(answer))
        for name, answers in ((name, list(answers)) for name, answers in golds.items())
        if any(map(alternatives, answers))
    }
    if not several:
        return ""
    examples = "; ".join(
        f"{name}: {shown(answer)}" for name, answer in list(several.items())[:_NAMED]
    )
    ellipsis = ", …" * (len(several) > _NAMED)
    return (
        f"{len(several)} of {len(golds)} records have a gold answer that seems to hold several, but counts "
        f"as one ({examples}{ellipsis}). To accept each part as right too: --split-alternatives "
        "(split_alternatives=True)."
    )
