"""The encyclopaedia texts that the package ships for long answers: openings, and paragraphs with questions.

    python -m training.long_texts --corpus CORPUS --xquad XQUAD

CORPUS holds wikipedia_summaries.json.xz, from which the pair's training text was taken too; XQUAD is
google-deepmind/xquad's xquad.en.json. Chosen are the longest openings of articles that `held_out` keeps
for tests, and the first fitting paragraph of every article of XQuAD with its first two questions that can
be answered. Writes openings.jsonl.gz, paragraphs.jsonl.gz and LONG.md in src/floatscope/tasks.
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
from urllib.parse import quote

from floatscope.tasks.held_out import held_out
from floatscope.tasks.long_texts import OPENINGS, PARAGRAPHS
from training.common import UsageError

SUMMARIES = "wikipedia_summaries.json.xz"
MANY = 64  # openings
WORDS = range(60, 161)  # of a paragraph
QUESTIONS = 2  # of a paragraph
# Nothing that a model should be left to go on with by itself.
APART = frozenset({"Suicide"})
ABOUT = """# Texts for long answers

`openings.jsonl.gz` holds openings of these articles of the English Wikipedia, and `paragraphs.jsonl.gz`
paragraphs of the articles below them with questions and answers, from
[XQuAD](https://github.com/google-deepmind/xquad) (English part; Artetxe, Ruder and Yogatama 2020, after
SQuAD, Rajpurkar et al. 2016). Both are by Wikipedia's contributors, under
[CC BY-SA 4.0](https://creativecommons.org/licenses/by-sa/4.0/), and are shipped under the same licence,
unchanged but for white space. Each article's history names its authors. `training/long_texts.py` chose
them. The twin's training text has none of these articles: openings are of those that
`floatscope.tasks.held_out` keeps for tests, and XQuAD's are left out whole. The embedded pair's has the
openings.

"""


def openings(corpus: Path) -> list[dict[str, Any]]:
    """The longest ones, in the order of their titles."""
    with lzma.open(corpus / SUMMARIES, "rt", encoding="utf-8") as file:
        articles = json.load(file)
    held = [t for t in sorted(articles) if held_out(t) and t not in APART]
    held.sort(key=lambda title: -len(articles[title]["extract"].split()))
    if len(held) < MANY:
        raise UsageError(f"{len(held)} articles are held out in {corpus}, {MANY} are needed")
    return [{"title": t, "text": one_line(articles[t]["extract"])} for t in sorted(held[:MANY])]


def paragraphs(xquad: Path) -> Iterator[dict[str, Any]]:
    """One of every article."""
    for article in json.loads(xquad.read_text(encoding="utf-8"))["data"]:
        title = article["title"].replace("_", " ")
        for paragraph in article["paragraphs"]:
            text = one_line(paragraph["context"])
            asked = [
                {"id": q["id"], "question": q["question"].strip(), "answers": answers}
                for q in paragraph["qas"]
                if (answers := sorted({one_line(a["text"]) for a in q["answers"]}))
                and all(a in text for a in answers)
            ]
            if len(text.split()) in WORDS and len(asked) >= QUESTIONS:
                yield {"title": title, "text": text, "questions": asked[:QUESTIONS]}
                break
        else:
            raise UsageError(f"no paragraph of {title} fits")


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help=f"folder with {SUMMARIES}")
    parser.add_argument("--xquad", type=Path, required=True, help="xquad.en.json")
    given = parser.parse_args()
    made = {OPENINGS: openings(given.corpus), PARAGRAPHS: list(paragraphs(given.xquad))}
    about = ABOUT
    for path, rows in made.items():
        lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows)
        path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
        print(f"{path.name}: {len(rows)}, {path.stat().st_size:,} bytes")
        links = (f"- [{r['title']}]({address(r['title'])})\n" for r in rows)
        about += f"## {path.name}\n\n" + "".join(links) + "\n"
    OPENINGS.with_name("LONG.md").write_text(about.rstrip() + "\n", encoding="utf-8")


def address(title: str) -> str:
    return f"https://en.wikipedia.org/wiki/{quote(title.replace(' ', '_'))}"


if __name__ == "__main__":
    main()
