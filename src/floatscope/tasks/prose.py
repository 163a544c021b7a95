"""Running English prose: passages of public-domain books, each by a different author.

Prose is a second domain besides questions. Passages are independent examples: no two share a sentence. None
of the books is in the embedded pair's training text, though similar ones are; PROSE.md, next to the file,
lists all authors and titles. `noise` has single sentences for the world's setting `noise`.
"""

import gzip
import json
from functools import lru_cache
from pathlib import Path

from ..errors import UsageError

FILE = Path(__file__).with_name("prose.jsonl.gz")
PASSAGES = 128  # in that file


@lru_cache(maxsize=1)
def sentences() -> tuple[tuple[str, ...], ...]:
    """Return the passages, each as a tuple of sentences."""
    lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()
    return tuple(tuple(json.loads(line)["sentences"]) for line in lines)


def prose(index: int, length: int) -> str:
    """Return as many complete words of passage `index` as fit into `length` characters.

    Cutting at sentences would not make two domains of equal length, because sentences differ too much in
    length.
    """
    if not 0 <= index < PASSAGES:
        raise UsageError(
            f"expected a passage of prose from 0 to {PASSAGES - 1}, got {index}",
            f"Trace at most {PASSAGES} examples of prose: none is used twice.",
        )
    text = " ".join(sentences()[index])
    return text if len(text) <= length else text[: length + 1].rpartition(" ")[0] or text[:length]
