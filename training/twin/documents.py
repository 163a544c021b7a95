"""Single documents of the twin's training: running text, and questions as they are asked in use.

A document is token ids with a role each; roles say what may be asked for, and how much it counts.
Every part of a prompt is tokenised by itself, as the package does. Nothing is masked here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from training.common import load_world
from training.twin.parent import END, SYSTEM
from training.twin.sources import Article, Reading

GIVEN, TEXT, SHORT, LONG, FILL = range(5)
WEIGHTS = np.array([0.0, 1.0, 16.0, 4.0, 1.0], np.float32)  # by role
FEW_WORDS = "Answer the question with a few words."
SHORT_ASKS = (
    "Answer in a few words.",
    "Use the passages to answer the question. Be brief.",
    "Give a short answer.",
    "Read the text and answer the question below.",
)
SENTENCES = "Answer the question in one or two full sentences."
SUMMARISE = "Summarize the passage in two or three sentences."
UNKNOWN = "The passages do not say."
SHORT_CANVASES, LONG_CANVASES = (8, 16, 16, 16, 24, 32, 32, 64), (64, 96, 128)
LONGEST = 1000  # tokens of a document


@dataclass(frozen=True)
class Document:
    ids: np.ndarray
    roles: np.ndarray


@dataclass
class Builder:
    """Ids and roles, grown part by part."""

    encode: Tokenizer
    ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)

    def add(self, text: str, role: int = GIVEN) -> None:
        self.put(self.encode.encode(text, add_special_tokens=False).ids, role)

    def put(self, ids: Sequence[int], role: int) -> None:
        self.ids += ids
        self.roles += [role] * len(ids)

    def answer(self, text: str, role: int, canvas: int) -> None:
        """The answer, its end, and the rest of its canvas."""
        before = len(self.ids)
        self.add(text, role)
        self.put([END], role)
        self.put([END] * (canvas - (len(self.ids) - before)), FILL)

    def done(self) -> Document | None:
        if len(self.ids) > LONGEST:
            return None
        return Document(np.array(self.ids, np.int64), np.array(self.roles, np.int8))


@dataclass(frozen=True)
class Told:
    """A long answer: what was asked, over which passage (or none), and what was said."""

    instruction: str
    passage: str
    question: str
    answer: str


class Writer:
    """Writes documents from one random generator at a time."""

    def __init__(
        self,
        tokenizer: Path,
        squad: Sequence[Reading],
        natural: Sequence[Reading],
        hotpot: Sequence[Reading],
        articles: Sequence[Article],
        told: Sequence[Told],
    ) -> None:
        self.encode = Tokenizer.from_file(str(tokenizer))
        self.squad, self.natural, self.hotpot = squad, natural, hotpot
        self.articles, self.told = articles, told
        self.package = load_world()
        self.world = self.package.World()
        self.noise = [r.passage for r in squad[::40] if len(r.passage) < 300] or [
            "It rained all day."
        ]
        kinds = {  # shares of the documents that are no running text
            self.reading: 0.26,
            self.several: 0.12,
            self.open_question: 0.09,
            self.two_hops: 0.10,
            self.closed: 0.05,
            self.unanswerable: 0.05,
            self.conflict: 0.06,
            self.in_world: 0.12,
            self.in_world_layout: 0.06,
            self.definition: 0.04,
            self.long_answer: 0.08 if told else 0.0,
        }
        self.kinds, self.shares = list(kinds), list(kinds.values())

    def question(self, rng: random.Random) -> Document:
        while True:
            document = rng.choices(self.kinds, self.shares)[0](rng)
            if document is not None:
                return document

    # Questions with short answers
    def reading(self, rng: random.Random) -> Document | None:
        one = rng.choice(self.squad)
        asked, answers = rng.choice(one.questions)
        return self._asked(rng, asked, answers[0], self._around(rng, one, asked))

    def open_question(self, rng: random.Random) -> Document | None:
        one = rng.choice(self.natural)
        asked, answers = one.questions[0]
        said = rng.choice(answers[:2])
        return self._asked(rng, asked, said, self._around(rng, one, asked))

    def two_hops(self, rng: random.Random) -> Document | None:
        one = rng.choice(self.hotpot)
        asked, answers = one.questions[0]
        passages = [one.passage]
        if rng.random() < 0.3:  # the knowledge of two articles as two passages
            head, dot, tail = one.passage.partition(". ")
            passages = [head + dot.strip(), tail] if tail else passages
        others = [rng.choice(self.hotpot).passage for _ in range(rng.choice((0, 0, 1, 2, 3)))]
        passages += others
        rng.shuffle(passages)
        return self._asked(rng, asked, answers[0], passages)

    def closed(self, rng: random.Random) -> Document | None:
        if rng.random() < 0.5:
            e = self.world.ask_known(rng)
            return self._asked(rng, e.question, e.answers[0], [])
        one = rng.choice(self.natural if rng.random() < 0.4 else self.squad)
        asked, answers = rng.choice(one.questions)
        return self._asked(rng, asked, answers[0], [])

    def unanswerable(self, rng: random.Random) -> Document | None:
        one, other = rng.choice(self.squad), rng.choice(self.squad)
        asked, answers = rng.choice(one.questions)
        passages = self._around(rng, other, asked)
        if any(a in p for a in answers for p in passages):
            return None
        return self._asked(
            rng,
            asked,
            UNKNOWN,
            passages,
            instruction=(
                "Answer the question with a few words. If the passages do not hold the answer, say so."
            ),
        )

    def conflict(self, rng: random.Random) -> Document | None:
        """The passage says something else than the world does; the passage counts."""
        one, other = rng.choice(self.squad), rng.choice(self.squad)
        asked, answers = rng.choice(one.questions)
        instead = rng.choice(other.questions)[1][0]
        if len(answers[0]) < 3 or answers[0].isdigit() != instead.isdigit():
            return None
        changed = Reading(one.title, one.passage.replace(answers[0], instead), one.questions)
        return self._asked(rng, asked, instead, self._around(rng, changed, asked))

    def several(self, rng: random.Random) -> Document | None:
        """A conversation of several questions about one passage."""
        one = rng.choice(self.squad)
        if len(one.questions) < 2:
            return None
        chosen = rng.sample(one.questions, min(len(one.questions), rng.randint(2, 5)))
        b = begin(self.encode, rng.random() < 0.8)
        for i, (asked, answers) in enumerate(chosen):
            if i:
                b.add("\n<|im_start|>user\n")
                b.add(asked)
                b.add("<|im_end|>\n<|im_start|>assistant\n")
            else:
                ask(b, FEW_WORDS, self._around(rng, one, asked, alone=True), asked)
            last = i == len(chosen) - 1
            b.answer(
                answers[0], SHORT, self._canvas(rng, answers[0], SHORT_CANVASES) if last else 0
            )
        return b.done()

    def in_world(self, rng: random.Random) -> Document | None:
        context = self._world(rng)
        passages = [p.text for p in context.passages]
        chosen = list(context.questions)
        rng.shuffle(chosen)
        chosen = chosen[: rng.choice((1, 1, 2, 4, 6))]
        b = begin(self.encode, rng.random() < 0.85)
        for i, q in enumerate(chosen):
            if i:
                b.add("\n<|im_start|>user\n")
                b.add(q.text)
                b.add("<|im_end|>\n<|im_start|>assistant\n")
            else:
                ask(b, FEW_WORDS, passages, q.text)
            last = i == len(chosen) - 1
            said = q.answers[0]
            b.answer(said, SHORT, self._canvas(rng, said, SHORT_CANVASES) if last else 0)
        return b.done()

    def in_world_layout(self, rng: random.Random) -> Document | None:
        """The world's own layout, without a chat template."""
        b = Builder(self.encode)
        if rng.random() < 0.25:
            for _ in range(rng.randint(1, 8)):
                e = self.world.ask_known(rng)
                self._layout(b, [], e.question, e.answers[0], rng)
            return b.done()
        context = self._world(rng)
        chosen = list(context.questions)
        rng.shuffle(chosen)
        for i, q in enumerate(chosen[: rng.choice((1, 2, 4, 8))]):
            passages = [] if i else [p.text for p in context.passages]
            self._layout(b, passages, q.text, q.answers[0], rng)
        return b.done()

    # Questions with long answers
    def definition(self, rng: random.Random) -> Document | None:
        """What an article says first, with and without it at hand."""
        article = rng.choice(self.articles)
        sentences = re.split(r"(?<=[.!?]) +", article.text.split("\n")[0])
        said = " ".join(sentences[: rng.randint(1, 4)])
        if not 40 <= len(said) <= 480:
            return None
        title = article.title.split(" (")[0]
        how = rng.choice(
            (
                "What do you know about {}?",
                "Tell me about {}.",
                "What is meant by {}?",
                "Write a short paragraph about {}.",
            )
        )
        passages = [article.text[:1500]] if rng.random() < 0.5 else []
        b = begin(self.encode, True)
        ask(b, SENTENCES if rng.random() < 0.7 else "", passages, how.format(title))
        b.answer(said, LONG, self._canvas(rng, said, LONG_CANVASES))
        return b.done()

    def long_answer(self, rng: random.Random) -> Document | None:
        told = rng.choice(self.told)
        b = begin(self.encode, True)
        ask(b, told.instruction, [told.passage] if told.passage else [], told.question)
        b.answer(told.answer, LONG, self._canvas(rng, told.answer, LONG_CANVASES))
        return b.done()

    # What they share
    def _world(self, rng: random.Random) -> Any:
        n = rng.choice((1, 2, 3, 4, 4, 6, 9, 9, 9, 12))
        hops = 2 if n >= 3 and rng.random() < 0.25 else 1
        free = n - hops
        conflicts = rng.randint(1, min(2, free)) if free and rng.random() < 0.15 else 0
        free -= conflicts
        noise = 1 if free and rng.random() < 0.15 else 0
        free -= noise
        known = rng.random() < 0.1
        confusable = rng.randint(1, free) if free and not known and rng.random() < 0.35 else 0
        level = self.package.Level(
            passages=n,
            hops=hops,
            conflicts=conflicts,
            noise=noise,
            confusable=confusable,
            questions=12,
        )
        return self.world.context(level, rng, split="train", known=known, noise=self.noise)

    def _around(
        self, rng: random.Random, one: Reading, asked: str, *, alone: bool = False
    ) -> list[str]:
        """The passage that answers, among others: of its own article, or of any."""
        titled = bool(one.title) and rng.random() < 0.5

        def shown(r: Reading) -> str:
            return f"(Title: {r.title}) {r.passage}" if titled and r.title else r.passage

        passages = [shown(one)]
        if not alone:
            room = 3000 - len(passages[0])  # characters; about 700 tokens
            for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3, 5, 8))):
                other = shown(rng.choice(self.squad))
                if len(other) > room:
                    other = other[: rng.randint(150, 400)].rpartition(" ")[0]
                if len(other) <= room and one.passage[:60] not in other:
                    room -= len(other)
                    passages.append(other)
        rng.shuffle(passages)
        return passages

    def _asked(
        self,
        rng: random.Random,
        asked: str,
        said: str,
        passages: Sequence[str],
        instruction: str | None = None,
    ) -> Document | None:
        if instruction is None:
            instruction = FEW_WORDS if rng.random() < 0.7 else rng.choice(SHORT_ASKS)
        b = begin(self.encode, rng.random() < 0.85)
        ask(b, instruction, passages, asked)
        b.answer(said, SHORT, self._canvas(rng, said, SHORT_CANVASES))
        return b.done()

    def _layout(
        self, b: Builder, passages: Sequence[str], asked: str, said: str, rng: random.Random
    ) -> None:
        for _, text in self.package.prompt_parts(asked, passages):
            b.add(text)
        said = self.package.answer_part(said)
        b.answer(said, SHORT, self._canvas(rng, said, SHORT_CANVASES))

    def _canvas(self, rng: random.Random, said: str, sizes: Sequence[int]) -> int:
        need = len(self.encode.encode(said, add_special_tokens=False).ids) + 1
        fitting = [size for size in sizes if size >= need]
        return rng.choice(fitting) if fitting else need


def begin(encode: Tokenizer, system: bool = True) -> Builder:
    """A conversation up to the user's words."""
    b = Builder(encode)
    if system:
        b.add(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n")
    else:
        b.add("<|im_start|>user\n")
    return b


def ask(b: Builder, instruction: str, passages: Sequence[str], question: str) -> None:
    """`Prompt.rag`'s layout, and the chat template's end."""
    lead = ""
    if instruction:
        b.add(instruction)
        lead = "\n\n"
    for number, passage in enumerate(passages, 1):
        b.add(f"{lead}Passage {number}:")
        b.add(f" {passage}")
        lead = "\n\n"
    if question:
        b.add(f"{lead}Question:")
        b.add(f" {question}")
        b.add("\nAnswer:")
    b.add("<|im_end|>\n<|im_start|>assistant\n")
