"""Create the records of tasks with long answers: "long:continuation", "long:summary", "long:answer".

- continuation: the model continues a text of a book or encyclopaedia article after about 60 words; the gold
  text is the original continuation
- summary: the model summarises the opening of an article in two or three sentences; the gold text is the
  first two sentences of the opening, which state the main facts of the article. No summary was written by
  hand
- answer: the model reads a paragraph and answers a question in full sentences; the gold answer is short, and
  the model's answer must contain the gold answer

The texts are part of the package (`long_texts`, `prose`). `seed` determines the order of the records, and n
records are the first n records in that order.
"""

from collections.abc import Callable, Iterator

from ..errors import UsageError
from .long_texts import openings, paragraphs
from .pool import ranked
from .prose import sentences
from .record import Asks, Passage, Record

LONG = "long:"
OPENING = 60  # words of the text to continue
FOLLOWING = 96  # most words of the continuation
SUMMARY = 2  # sentences of gold


def long_records(name: str, n: int | None = None, seed: int = 0) -> tuple[Record, ...]:
    """Return records of a task with long answers.

    Args:
        name (str): "long:continuation", "long:summary" or "long:answer".
        n (int): Number of records; None (by default) returns all records.
        seed (int): Seed of the order of the records; 0 by default.

    Returns:
        The records. The records for a smaller `n` are the first records for a larger `n`.
    """
    make = _TASKS.get(name.removeprefix(LONG))
    if make is None or not name.startswith(LONG):
        names = ", ".join(LONG + task for task in _TASKS)
        raise UsageError(f"no task called {name!r}", f"Choose from {names}.")
    records = list(make())
    if n is not None and not 1 <= n <= len(records):
        raise UsageError(
            f"expected 1 to {len(records)} records of {name}, got {n}",
            f"It has {len(records)} texts, and none is used twice: lower --limit and --questions.",
        )
    return tuple(ranked(records, lambda record: record.id, f"{LONG}{seed}")[:n])


def asked_for(name: str) -> Asks | None:
    """Return the kind of text that a long task asks for; None if `name` is not a long task."""
    task = name.removeprefix(LONG)
    return _ASKS.get(task) if name.startswith(LONG) else None


def _continuations() -> Iterator[Record]:
    texts = {f"book/{i}": " ".join(book) for i, book in enumerate(sentences())}
    texts |= {f"article/{article.title}": article.text for article in openings()}
    for id, text in texts.items():
        words = text.split(" ")
        opening, continuation = words[:OPENING], words[OPENING : OPENING + FOLLOWING]
        yield Record(
            f"{LONG}continuation/{id}",
            " ".join(opening),
            (" ".join(continuation),),
            asks=Asks.CONTINUATION,
        )


def _summaries() -> Iterator[Record]:
    for article in openings():
        yield Record(
            f"{LONG}summary/{article.title}",
            f"What does the passage on {article.title} say?",
            (" ".join(article.sentences[:SUMMARY]),),
            (Passage(article.text, article.title, gold=True),),
            asks=Asks.SUMMARY,
        )


def _answers() -> Iterator[Record]:
    for article in paragraphs():
        for question in article.questions:
            yield Record(
                f"{LONG}answer/{question.id}",
                question.text,
                question.answers,
                (Passage(article.text, article.title, gold=True),),
                asks=Asks.SENTENCES,
                cluster=article.title,
            )


_TASKS: dict[str, Callable[[], Iterator[Record]]] = {
    "continuation": _continuations,
    "summary": _summaries,
    "answer": _answers,
}
_ASKS = {"continuation": Asks.CONTINUATION, "summary": Asks.SUMMARY, "answer": Asks.SENTENCES}
