"""Running English prose: passages of public-domain books, each of another author.

A domain to compare questions with. Every passage is an example of its own: no two share a sentence.
None of the books is in the embedded pair's training text, though others of their kind are; PROSE.md
beside the file names every author and title. `noise` is for the world's own dial and has single facts.
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
    """The passages, each as its sentences."""
    lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()
    return tuple(tuple(json.loads(line)["sentences"]) for line in lines)


def prose(index: int, length: int) -> str:
    """As many whole words of passage `index` as `length` characters hold: sentences differ in length too
    much for two domains to be of one length."""
    if not 0 <= index < PASSAGES:
        raise UsageError(
            f"expected a passage of prose from 0 to {PASSAGES - 1}, got {index}",
            f"Trace at most {PASSAGES} examples of prose: none is used twice.",
        )
    text = " ".join(sentences()[index])
    return text if len(text) <= length else text[: length + 1].rpartition(" ")[0] or text[:length]
