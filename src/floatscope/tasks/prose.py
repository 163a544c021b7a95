"""Read passages of English prose from public-domain books, each by a different author.

Prose is a second domain of text, in addition to questions. The passages are independent examples: no two
passages share a sentence. The training text of the embedded pair contains none of these books, but it
contains similar books. The file PROSE.md in this folder lists all authors and titles. `noise` contains single
sentences for noise in the synthetic world.
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

    The text is cut after a word and not after a sentence, because sentences differ too much in length: the
    texts of two domains would not have equal lengths.
    """
    if not 0 <= index < PASSAGES:
        raise UsageError(
            f"expected a passage of prose from 0 to {PASSAGES - 1}, got {index}",
            f"Trace at most {PASSAGES} examples of prose: none is used twice.",
        )
    text = " ".join(sentences()[index])
    return text if len(text) <= length else text[: length + 1].rpartition(" ")[0] or text[:length]
