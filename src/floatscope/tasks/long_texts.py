"""Read encyclopaedia texts for tasks with long answers: openings of articles, and paragraphs.

The file LONG.md in this folder lists all articles and the licence. The training text of the twin does not
contain these articles (`held_out`). The paragraphs and the questions about them are from XQuAD (1910.11856),
which is based on SQuAD (1606.05250). `long_questions` turns the texts into records. `prose` reads passages of
books.
"""

import gzip
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

OPENINGS = Path(__file__).with_name("openings.jsonl.gz")
PARAGRAPHS = Path(__file__).with_name("paragraphs.jsonl.gz")
# A sentence ends before a capital letter, but not after an initial or a common abbreviation.
_END = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bc\.)(?<!\b(?:St|Dr|Mr|vs)\.)(?<!U\.S\.) +(?=[A-Z\"])"
)


@dataclass(frozen=True)
class Question:
    """A question about an article, with its right answers."""

    id: str
    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Article:
    """The opening or a paragraph of an article, with questions about it."""

    title: str
    text: str
    questions: tuple[Question, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the text."""
        return tuple(_END.split(self.text))


@lru_cache(maxsize=1)
def openings() -> tuple[Article, ...]:
    """Return the openings of encyclopaedia articles, without questions."""
    return _read(OPENINGS)


@lru_cache(maxsize=1)
def paragraphs() -> tuple[Article, ...]:
    """Return paragraphs of encyclopaedia articles, with questions about them."""
    return _read(PARAGRAPHS)


def _read(path: Path) -> tuple[Article, ...]:
    articles = map(json.loads, gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())
    return tuple(
        Article(
            article["title"],
            article["text"],
            tuple(
                Question(q["id"], q["question"], tuple(q["answers"]))
                for q in article.get("questions", ())
            ),
        )
        for article in articles
    )
