"""The prose that the package ships, from public-domain books: one passage each, of many authors.

    python -m training.prose --books BOOKS --corpus CORPUS

BOOKS is a copy of mlschmitt/classic-books-markdown, from which the pair's training text was taken too;
CORPUS is that text. Chosen are books of 1700 to 1922, one per author, whose titles
are not in the training text (a few are older translations). Writes prose.jsonl.gz and PROSE.md in
src/floatscope/tasks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatscope.tasks.prose import FILE, PASSAGES
from training.common import UsageError
from training.corpus import BOOKS

LENGTH = 2400  # characters of a passage, or a sentence more
YEARS = range(1700, 1923)
HEAD = re.compile(
    r"Title: *(?P<title>.+?)\s*\n.*?Author: *(?P<author>.+?)\s*\n.*?Year: *(?P<year>\d+)", re.S
)
# A sentence ends where a capital or a quotation follows; an initial or a title is no end.
END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!Mr\.)(?<!Dr\.)(?<!St\.)(?<!Mrs\.) +(?=[A-Z])")
ABOUT = """# Prose

`prose.jsonl.gz` holds a passage of each of these books, all in the public domain, from
[mlschmitt/classic-books-markdown](https://github.com/mlschmitt/classic-books-markdown). None of them is
in the training text of the embedded pair. `training/prose.py` chose them.

"""
PLAIN = re.compile(r"[A-Za-z0-9 .,;:!?'()-]+")


def chosen(books: Path, known: set[str]) -> Iterator[dict[str, Any]]:
    """A passage of every author who has a fitting book; no sentence is in two of them."""
    authors: set[str] = set()
    used: set[str] = set()
    for path in sorted(books.glob("*/*.md")):
        text = path.read_text(encoding="utf-8")
        head = HEAD.search(text[:400])
        if head is None or "ranslated" in text[:3000] or int(head["year"]) not in YEARS:
            continue
        if head["author"] in authors or head["title"].casefold() in known:
            continue
        sentences = passage(text, used)
        if sentences:
            authors.add(head["author"])
            used.update(map(str.casefold, sentences))
            yield {
                "author": head["author"],
                "title": head["title"],
                "year": int(head["year"]),
                "sentences": sentences,
            }


def passage(text: str, used: set[str]) -> list[str]:
    """Whole sentences of paragraphs that follow each other, from the second third of a book on."""
    paragraphs = [re.sub(r"\s+", " ", p.replace("_", "")).strip() for p in text.split("\n\n")]
    start = len(paragraphs) // 3
    found: list[str] = []
    for paragraph in paragraphs[start:]:
        sentences = END.split(paragraph)
        fits = (
            len(paragraph) > 200
            and paragraph[0].isupper()
            and paragraph[-1] in ".!?"
            and PLAIN.fullmatch(paragraph)
            and not any(s.casefold() in used or s in found for s in sentences)
            and len(set(sentences)) == len(sentences)
        )
        if not fits:
            found = []
            continue
        for sentence in sentences:
            found.append(sentence)
            if len(" ".join(found)) >= LENGTH:
                return found
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--books", type=Path, required=True, help="folder of AUTHOR/TITLE.md")
    parser.add_argument("--corpus", type=Path, required=True, help=f"folder with {BOOKS}")
    given = parser.parse_args()
    with lzma.open(given.corpus / BOOKS, "rt", encoding="utf-8") as file:
        known = {t.strip().casefold() for t in re.findall(r"Title:([^\n]*)\n", file.read())}
    every = list(chosen(given.books, known))
    if len(every) < PASSAGES:
        raise UsageError(f"{len(every)} fitting books in {given.books}, {PASSAGES} are needed")
    kept = [every[i * len(every) // PASSAGES] for i in range(PASSAGES)]
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept)
    FILE.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    named = "".join(f"- {b['author']}, *{b['title']}* ({b['year']})\n" for b in kept)
    FILE.with_name("PROSE.md").write_text(ABOUT + named, encoding="utf-8")
    print(f"{len(kept)} of {len(every)} passages, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
