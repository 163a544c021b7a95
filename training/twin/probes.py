"""Emergence: cheap measurements on fixed held-out rows while a branch trains.

The measures are the pair's (`training.probes`): shares of position 0 and of the strongest key, anchors,
persistence over eight states, by layer; and the losses of answers and of text. The finished models are
measured with the package.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.common import load_world
from training.probes import STATES, _summary
from training.twin.documents import FEW_WORDS, ask, begin
from training.twin.model import Twin
from training.twin.parent import END, HEADS, KV_HEADS, LAYERS, MASK

SLOTS = 8


class Probe:
    def __init__(
        self, data: Path, tokenizer: Tokenizer, *, small: bool = False, seed: int = 0
    ) -> None:
        rows, questions = (2, 8) if small else (12, 160)
        self.seed, self.texts = seed, 4 if small else 64
        package = load_world()
        level = package.LEVELS["three" if small else "nine"]
        made = []
        for e in package.World().examples(level, 30 * rows + questions, seed=99):
            answer = tokenizer.encode(e.answers[0], add_special_tokens=False).ids
            if len(answer) < SLOTS:
                made.append((self._prompt(tokenizer, e), answer))
        self.questions = made[:questions]
        common = Counter(len(p) for p, _ in made[questions:]).most_common(1)[0][0]
        same = [(p, a) for p, a in made[questions:] if len(p) == common][:rows]
        world = np.array([[*p, *a, *[END] * (SLOTS - len(a))] for p, a in same])
        held, begins = np.load(data / "held.npy"), np.load(data / "held_begins.npy")
        long = [b for b in begins if b + 256 <= len(held)][:: max(1, len(begins) // rows - 1)][
            :rows
        ]
        natural = np.stack([held[b : b + 256] for b in long]).astype(np.int64)
        self.domains = {"world": (world, SLOTS), "natural": (natural, 8 * STATES)}
        self.held = held.astype(np.int64)

    def _prompt(self, tokenizer: Tokenizer, example: object) -> list[int]:
        b = begin(tokenizer)
        ask(b, FEW_WORDS, [p.text for p in example.passages], example.question)  # type: ignore[attr-defined]
        return b.ids

    @torch.no_grad()
    def measure(
        self, model: Twin, step: int, tokens: int, train_loss: float
    ) -> tuple[list[dict], dict]:
        device = model.mask.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.table, self.weights = model.table(dtype), model.weights(dtype)
        rows = []
        for domain, (ids, fresh) in self.domains.items():
            received, mass = self._states(model, torch.tensor(ids, device=device), fresh)
            summary = _summary(
                [torch.stack(r) for r in received],
                [torch.stack(m) for m in mass],
                causal=model.causal,
            )
            rows += [
                {
                    "step": step,
                    "tokens": tokens,
                    "domain": domain,
                    "layer": layer,
                    **{name: float(values[layer]) for name, values in summary.items()},
                }
                for layer in range(LAYERS)
            ]
        loss, accuracy = self._answers(model)
        curve = {
            "step": step,
            "tokens": tokens,
            "train_loss": train_loss,
            "answer_loss": loss,
            "answer_accuracy": accuracy,
            "natural_loss": text_loss(model, self.held, self.texts),
        }
        return rows, curve

    def _states(
        self, model: Twin, ids: Tensor, fresh: int
    ) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """received and mass, [state][layer] -> (rows, keys so far)."""
        n, length = ids.shape
        each = fresh // STATES
        received: list[list[Tensor]] = [[] for _ in range(STATES)]
        mass: list[list[Tensor]] = [[] for _ in range(STATES)]

        def attention(q: Tensor, k: Tensor) -> Tensor:
            q = q.view(n, length, HEADS, -1).transpose(1, 2).float()
            k = k.view(n, length, KV_HEADS, -1).transpose(1, 2).float()
            scores = q @ k.repeat_interleave(HEADS // KV_HEADS, 1).mT / q.shape[-1] ** 0.5
            if model.causal:
                hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(hidden, -torch.inf)
            return scores.softmax(-1).mean(1)  # (rows, queries, keys)

        if model.causal:

            def look_once(_: int, q: Tensor, k: Tensor) -> None:
                sums = attention(q, k).cumsum(1)
                for s in range(STATES):
                    m = length - fresh + s * each
                    column = sums[:, m - 1, :m]
                    received[s].append(column / torch.arange(m, 0, -1, device=q.device))
                    mass[s].append(column / m)

            forward(model, ids, self.table, self.weights, look=look_once)
            return received, mass
        order = list(range(length - fresh, length))
        random.Random(self.seed).shuffle(order)
        for s in range(STATES):
            canvas = ids.clone()
            canvas[:, order[s * each :]] = MASK

            def look(_: int, q: Tensor, k: Tensor, s: int = s) -> None:
                column = attention(q, k).sum(1) / length
                received[s].append(column)
                mass[s].append(column)

            forward(model, canvas, self.table, self.weights, look=look)
        return received, mass

    def _answers(self, model: Twin) -> tuple[float, float]:
        """Loss of answer tokens and their end, all masked at once (diffusion) or each given those
        before it (causal); accuracy of whole answers."""
        losses, hits = [], 0
        batch = self.questions
        told = [[*a, *[END] * (SLOTS - len(a))] for _, a in batch]
        tails = told if model.causal else [[MASK] * SLOTS] * len(batch)
        documents = [[*p, *t] for (p, _), t in zip(batch, tails, strict=True)]
        logits = packed_logits(
            model,
            documents,
            [range(len(p), len(p) + SLOTS) for p, _ in batch],
            self.table,
            self.weights,
        )  # (questions, slots, vocabulary)
        want = torch.tensor(told, device=logits.device)
        counts = torch.tensor([len(a) + 1 for _, a in batch], device=want.device)[:, None]
        real = torch.arange(SLOTS, device=want.device)[None] < counts
        nll = F.cross_entropy(logits.transpose(1, 2), want, reduction="none")
        losses.append((nll * real).sum() / real.sum())
        hits += int(((logits.argmax(-1) == want) | ~real).all(1).sum())
        return float(torch.stack(losses).mean()), hits / len(self.questions)


def forward(model: Twin, ids: Tensor, table: Tensor, weights: list, look: object = None) -> Tensor:
    """Hidden states of rows of one length, (rows · length, width)."""
    n, length = ids.shape
    starts = torch.arange(0, (n + 1) * length, length, dtype=torch.int32, device=ids.device)
    positions = torch.arange(length, device=ids.device).repeat(n)
    return model.hidden(ids.reshape(-1), positions, starts, table=table, weights=weights, look=look)  # type: ignore


def packed_logits(
    model: Twin, documents: list[list[int]], wanted: list[range], table: Tensor, weights: list
) -> Tensor:
    """Logits that predict the wanted positions of each document: (documents, wanted, vocabulary)."""
    device = table.device
    lengths = torch.tensor([len(d) for d in documents])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.tensor([i for d in documents for i in d], device=device)
    positions = torch.cat([torch.arange(n) for n in lengths.tolist()]).to(device)
    hidden = model.hidden(ids, positions, starts.int().to(device), table=table, weights=weights)
    rows = torch.tensor([[int(s) + p - 1 for p in w] for s, w in zip(starts, wanted, strict=False)])
    logits = F.linear(hidden[rows.to(device)], table).float()
    logits[..., MASK] = -torch.inf
    return logits


@torch.no_grad()
def text_loss(model: Twin, held: np.ndarray, texts: int, length: int = 512, seed: int = 0) -> float:
    return float(np.mean(text_losses(model, held, texts, length, seed)))


def text_losses(
    model: Twin, held: np.ndarray, texts: int, length: int = 512, seed: int = 0
) -> list[float]:
    """Nats a token of each held-out text: the next token's loss, or the masked-diffusion bound.

    The bound: of a text's n tokens k are masked, k uniform from 1 to n; the mean loss of the masked ones.
    """
    device = model.mask.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    table, weights = model.table(dtype), model.weights(dtype)
    draw = np.random.default_rng(seed)
    at = np.linspace(0, len(held) - length, texts).astype(int)
    levels = (draw.permutation(texts) + draw.random(texts)) / texts
    losses = []
    for start in range(0, texts, 32):
        part = slice(start, start + 32)
        ids = torch.tensor(np.stack([held[a : a + length] for a in at[part]]), device=device)
        masked = torch.ones_like(ids, dtype=torch.bool)
        if not model.causal:
            for row, level in zip(masked, levels[part], strict=True):
                k = max(1, int(np.ceil(level * (length - 1))))
                row[torch.tensor(1 + draw.permutation(length - 1)[k:])] = False
        masked[:, 0] = False
        canvas = ids if model.causal else ids.masked_fill(masked, MASK)
        hidden = forward(model, canvas, table, weights).view(*ids.shape, -1)[:, :-1]
        for h, want, asked in zip(hidden, ids[:, 1:], masked[:, 1:], strict=True):
            logits = F.linear(h[asked], table).float()
            logits[:, MASK] = -torch.inf
            losses.append(F.cross_entropy(logits, want[asked]))
    return torch.stack(losses).tolist()
