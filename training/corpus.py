"""Natural English: documents from the corpus folder, split into training and held-out ones.

Books are cut at their form feeds, encyclopaedia openings are one document each. The held-out
share is a property of the document's place in the corpus, so it is the same for every run.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

from training.common import UsageError

BOOKS, SUMMARIES = "books.txt.xz", "wikipedia_summaries.json.xz"
HELD_BOOK_EVERY, HELD_SUMMARY_EVERY = 80, 50
HEADER = re.compile(r"\A(?:\s*(?:Title|Author|Year):[^\n]*\n)*-+\n")


def documents(folder: str | Path) -> tuple[list[str], list[str]]:
    """(training, held-out) documents."""
    folder = Path(folder)
    for name in (BOOKS, SUMMARIES):
        if not (folder / name).is_file():
            raise UsageError(
                f"no {name} in {folder}: give --corpus a folder that holds {BOOKS} and {SUMMARIES}"
            )
    with lzma.open(folder / BOOKS, "rt", encoding="utf-8") as file:
        books = [HEADER.sub("", b).strip() for b in file.read().split("\f")]
    books = [re.sub(r"\n{3,}", "\n\n", b) for b in books if len(b) > 1000]
    with lzma.open(folder / SUMMARIES, "rt", encoding="utf-8") as file:
        articles = [a["extract"].strip() for a in json.load(file).values()]
    articles = [a for a in articles if len(a) > 100]
    train = [b for i, b in enumerate(books) if i % HELD_BOOK_EVERY]
    train += [a for i, a in enumerate(articles) if i % HELD_SUMMARY_EVERY]
    held = books[::HELD_BOOK_EVERY] + articles[::HELD_SUMMARY_EVERY]
    return train, held


def noise_passages(docs: list[str], limit: int = 20000) -> list[str]:
    """Short natural passages: the first sentences of articles, 80 to 240 characters."""
    out = []
    for doc in docs:
        if len(doc) < 4000:  # articles, not books
            match = re.match(r"[^\n]{80,240}?[.!?](?=\s|$)", doc)
            if match:
                out.append(match.group())
        if len(out) == limit:
            break
    return out
