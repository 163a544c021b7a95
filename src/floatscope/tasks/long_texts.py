"""Encyclopaedia texts for long answers: openings of articles, and paragraphs with questions.

LONG.md beside the files names every article and the licence. The twin's training leaves all of them out
(`held_out`). The paragraphs are XQuAD's (1910.11856), after SQuAD (1606.05250). What is
asked about them is in `long_questions`; running prose of books is in `prose`.
"""

import gzip
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

OPENINGS = Path(__file__).with_name("openings.jsonl.gz")
PARAGRAPHS = Path(__file__).with_name("paragraphs.jsonl.gz")
# A sentence ends where a capital follows; an initial or a usual short form is no end.
_END = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bc\.)(?<!\b(?:St|Dr|Mr|vs)\.)(?<!U\.S\.) +(?=[A-Z\"])"
)


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Article:
    """A piece of an article; `questions` are about it."""

    title: str
    text: str
    questions: tuple[Question, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(_END.split(self.text))


@lru_cache(maxsize=1)
def openings() -> tuple[Article, ...]:
    return _read(OPENINGS)


@lru_cache(maxsize=1)
def paragraphs() -> tuple[Article, ...]:
    return _read(PARAGRAPHS)


def _read(path: Path) -> tuple[Article, ...]:
    rows = map(json.loads, gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())
    return tuple(
        Article(
            row["title"],
            row["text"],
            tuple(
                Question(q["id"], q["question"], tuple(q["answers"]))
                for q in row.get("questions", ())
            ),
        )
        for row in rows
    )
