"""Rows of training data: token ids with a role each, always exactly as long as their bucket.

No row is padded. A row of questions is filled by choosing how many questions follow the passages
and, at the end, how many <eos> follow the last answer. Each 16-bit cell holds the token id in its
low 13 bits and the role above them. Rows are built from text part by part (see the world's
`layout`), so part boundaries are token boundaries, as they are when the models are used.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from training.common import BOS, EOS, TOKENIZER, load_world

ID_BITS = 13
TEXT, CONTEXT_TEXT, ANSWER_TOKEN, ANSWER_END, FILL = range(5)  # roles
MIN_SLOTS, MAX_SLOTS = 8, 32  # places for the last answer of a row
_ROLE = {role: role << ID_BITS for role in range(5)}
# The byte-level pre-tokenizer's rule, for ASCII text: merges never cross these pieces.
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


class Encoder:
    """The tokenizer with a cache of words: the same ids, several times faster on world text."""

    def __init__(self, path: str | Path = TOKENIZER) -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self._words: dict[str, list[int]] = {}
        self._parts: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        if not text.isascii():
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        words = self._words
        for word in _WORD.findall(text):
            known = words.get(word)
            if known is None:
                known = words[word] = self.tokenizer.encode(word, add_special_tokens=False).ids
            ids += known
        return ids

    def part(self, text: str) -> list[int]:
        """Ids of a part that occurs again and again (template, noise)."""
        ids = self._parts.get(text)
        if ids is None:
            ids = self._parts[text] = self(text)
        return ids


@dataclass(frozen=True)
class Dials:
    """Chances with which a training context gets each difficulty."""

    confusable: float = 0.35
    hops: float = 0.25
    conflicts: float = 0.15
    noise: float = 0.15
    known: float = 0.06
    few_questions: float = 0.15  # rows with one or two questions, as in use
    share: tuple[float, float] = (0.3, 0.75)  # of a row's tokens that are passages, otherwise


EASY = Dials(
    confusable=0.1,
    hops=0.0,
    conflicts=0.0,
    noise=0.0,
    known=0.0,
    few_questions=0.05,
    share=(0.2, 0.55),
)


class RowMaker:
    """Builds rows of any kind and length from one random generator at a time."""

    def __init__(
        self,
        natural: np.ndarray,
        noise: Sequence[str],
        *,
        world_seed: int = 0,
        encoder: Encoder | None = None,
    ) -> None:
        self.package = load_world()
        self.world = self.package.World(world_seed)
        self.encode = encoder or Encoder()
        self.natural, self.noise = natural, noise

    def text(self, rng: random.Random, length: int) -> np.ndarray:
        """<bos> and a stretch of natural text."""
        at = rng.randrange(len(self.natural) - length)
        row = np.empty(length, np.uint16)
        row[0], row[1:] = BOS, self.natural[at : at + length - 1]
        return row

    def biographies(self, rng: random.Random, length: int) -> np.ndarray:
        """<bos> and running text about known people, one to a line."""
        ids = [BOS]
        while len(ids) < length:
            ids += self.encode(self.world.biography(rng)) + self.encode.part("\n")
        return np.array(ids[:length], np.uint16)

    def closed_book(self, rng: random.Random, length: int) -> np.ndarray:
        """<bos> and questions about known people, without passages."""
        while True:
            asked = [self.world.ask_known(rng) for _ in range(length // 12 + 1)]
            row = self._answer([BOS], [(q.question, q.answers[0]) for q in asked], rng, length)
            if row is not None:
                return row

    def context(self, rng: random.Random, length: int, dials: Dials) -> np.ndarray:
        """<bos>, passages, and as many questions as fit."""
        while True:
            row = self._context(rng, length, dials)
            if row is not None:
                return row

    def _context(self, rng: random.Random, length: int, dials: Dials) -> np.ndarray | None:
        few = rng.random() < dials.few_questions
        share = rng.uniform(0.8, 0.92) if few else rng.uniform(*dials.share)
        n = max(1, min(24, round((length * share - 6) / 27)))
        known = rng.random() < dials.known
        hops = 2 if n >= 3 and rng.random() < dials.hops else 1
        free = n - hops
        conflicts = rng.randint(1, min(3, free)) if free and rng.random() < dials.conflicts else 0
        free -= conflicts
        noise = rng.randint(1, max(1, free // 2)) if free and rng.random() < dials.noise else 0
        free -= noise
        confusable = (
            rng.randint(1, free) if free and not known and rng.random() < dials.confusable else 0
        )
        level = self.package.Level(
            passages=n,
            confusable=confusable,
            hops=hops,
            conflicts=conflicts,
            noise=noise,
            questions=24,
        )
        context = self.world.context(level, rng, split="train", known=known, noise=self.noise)
        ids = [BOS]
        for name, text in self.package.passage_parts([p.text for p in context.passages]):
            ids += self.encode(text) if name.startswith("passage") else self.encode.part(text)
        questions = [(q.text, q.answers[0]) for q in context.questions]
        rng.shuffle(questions)
        return self._answer(ids, questions, rng, length)

    def _answer(
        self, ids: list[int], questions: Sequence[tuple[str, str]], rng: random.Random, length: int
    ) -> np.ndarray | None:
        """Add question blocks until the row is full; None if they cannot fill it."""
        text = _ROLE[CONTEXT_TEXT]
        row = [BOS] + [i | text for i in ids[1:]]
        for question, answer in questions:
            block: list[int] = []
            for name, part in self.package.question_parts(question):
                block += self.encode(part) if name == "question" else self.encode.part(part)
            told = self.encode(self.package.answer_part(answer))
            need = len(block) + max(MIN_SLOTS, len(told) + 1)
            left = length - len(row)
            if need > left:
                continue
            last = left - need <= MAX_SLOTS - MIN_SLOTS
            slots = left - len(block) if last else len(told) + 1 + rng.randrange(5)
            row += [i | text for i in block]
            row += [i | _ROLE[ANSWER_TOKEN] for i in told]
            row += [EOS | _ROLE[ANSWER_END]]
            row += [EOS | _ROLE[FILL]] * (slots - len(told) - 1)
            if last:
                return np.array(row, np.uint16)
        return None


def unpack(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ids, roles) of packed cells."""
    return cells & ((1 << ID_BITS) - 1), cells >> ID_BITS
