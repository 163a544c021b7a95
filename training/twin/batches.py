"""Steps of training: documents packed into one row of tokens, and what each objective asks of them.

Step s is a function of (seed, s) alone, so a run that stops goes on with the same steps, and both
objectives see the same documents. They are asked for the same tokens with the same weights: `arm` for
each of them from what stands before it, `mdm` for a drawn number of them (uniform from one to all, the
masked-diffusion bound without the noise of 1/t) from all that is not masked.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from training.twin.documents import FILL, GIVEN, TEXT, WEIGHTS, Document, Writer
from training.twin.parent import MASK

TOKENS = 32_768  # of a step
TEXT_SHARE = 0.55  # of those tokens, running text
DOCUMENTS = 383  # of a step, at most
CEILING = 20.0  # weight of one masked token, at most


@dataclass(frozen=True)
class Batch:
    ids: torch.Tensor  # (tokens,) as the model sees them
    positions: torch.Tensor  # (tokens,) within the document
    starts: torch.Tensor  # (documents + 1,) bounds, filled up with `tokens`
    rows: torch.Tensor  # (asked,) whose output is asked: the position before the token
    targets: torch.Tensor  # (asked,)
    weights: torch.Tensor  # (asked,) sum about 1
    text: torch.Tensor  # (asked,) whether it is running text


class Steps:
    """The batches of one objective."""

    def __init__(
        self,
        writer: Writer,
        text: np.ndarray,
        begins: np.ndarray,
        *,
        causal: bool,
        seed: int = 0,
        tokens: int = TOKENS,
    ) -> None:
        self.writer, self.text, self.begins = writer, text, begins
        self.causal, self.seed, self.tokens = causal, seed, tokens

    def documents(self, step: int) -> list[Document]:
        rng = random.Random(f"twin {self.seed} {step}")
        out: list[Document] = []
        left, running = self.tokens, 0
        while left and len(out) < DOCUMENTS:
            used = self.tokens - left
            if running <= TEXT_SHARE * used or left < 700 or len(out) > DOCUMENTS - 60:
                length = min(left, rng.choice((96, 160, 256, 384, 512, 512, 640)))
                if left - length < 48 or len(out) == DOCUMENTS - 1:
                    length = min(left, 700)
                document = self.running(rng, length)
                running += length
            else:
                document = self.writer.question(rng)
                if len(document.ids) > left - 48:
                    continue
            out.append(document)
            left -= len(document.ids)
        return out

    def running(self, rng: random.Random, length: int) -> Document:
        """A stretch of text; from the beginning of an article every other time. Three in ten ask for
        the last part alone, as a continuation does."""
        last = len(self.text) - length
        at = int(self.begins[rng.randrange(len(self.begins))]) if rng.random() < 0.5 else last
        at = rng.randrange(last) if at >= last else at
        ids = self.text[at : at + length].astype(np.int64)
        roles = np.full(length, TEXT, np.int8)
        roles[0] = GIVEN
        if rng.random() < 0.3 and length >= 96:
            roles[: length - rng.randint(32, min(128, length // 2))] = GIVEN
        return Document(ids, roles)

    def batch(self, step: int) -> Batch:
        documents = self.documents(step)
        draw = np.random.default_rng([self.seed, step])
        ids = np.concatenate([d.ids for d in documents])
        roles = np.concatenate([d.roles for d in documents])
        lengths = np.array([len(d.ids) for d in documents])
        bounds = np.concatenate([[0], lengths.cumsum()])
        positions = np.concatenate([np.arange(n) for n in lengths])
        weights = WEIGHTS[roles]
        weights = weights / weights.sum()
        if self.causal:
            asked, seen = np.flatnonzero(roles != GIVEN), ids
        else:
            asked, factor = self._masked(roles, bounds, draw)
            weights = weights.copy()
            weights[asked] *= factor
            seen = ids.copy()
            seen[asked] = MASK
        starts = np.full(DOCUMENTS + 1, len(ids))
        starts[: len(bounds)] = bounds
        tensor = torch.from_numpy
        return Batch(
            tensor(seen),
            tensor(positions),
            tensor(starts.astype(np.int32)),
            tensor(asked - 1),
            tensor(ids[asked]),
            tensor(weights[asked].astype(np.float32)),
            tensor(roles[asked] == TEXT),
        )

    def _masked(
        self, roles: np.ndarray, bounds: np.ndarray, draw: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which tokens are masked, and how much more each counts: a span of n of which k are masked
        counts as n, however many that is."""
        spans = list(_spans(roles, bounds))
        levels = (draw.permutation(len(spans)) + draw.random(len(spans))) / len(spans)  # stratified
        asked, factor = [], []
        for (a, b), level in zip(spans, levels, strict=True):
            n = b - a
            k = max(1, int(np.ceil(level * n)))
            if roles[a] != TEXT and draw.random() < 0.3:
                k = n
            asked.append(a + np.sort(draw.permutation(n)[:k]))
            factor.append(np.full(k, min(n / k, CEILING)))
        return np.concatenate(asked), np.concatenate(factor)


def _spans(roles: np.ndarray, bounds: np.ndarray) -> Iterator[tuple[int, int]]:
    """Stretches asked for together: running text, or an answer with its fill."""
    open_ = roles != GIVEN
    edges = np.zeros(len(roles) + 1, bool)
    edges[bounds] = True
    edges[1:-1] |= open_[1:] != open_[:-1]
    cuts = np.flatnonzero(edges)
    for a, b in itertools.pairwise(cuts):
        if open_[a]:
            yield int(a), int(b)


class _Stream(IterableDataset):
    def __init__(self, steps: Steps, first: int, last: int) -> None:
        self.steps, self.first, self.last = steps, first, last

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        worker, count = (info.id, info.num_workers) if info else (0, 1)
        for step in range(self.first + worker, self.last, count):
            yield self.steps.batch(step)


def stream(steps: Steps, first: int, last: int, workers: int) -> Iterator[Batch]:
    """Batches of steps first … last − 1, in order, made by `workers` processes ahead of time."""
    loader = DataLoader(
        _Stream(steps, first, last),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=8 if workers else None,
    )
    yield from loader


__all__ = ["FILL", "Batch", "Steps", "stream"]
