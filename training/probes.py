"""Emergence: cheap measurements of attention on a fixed batch while a model trains.

Every probe runs on the same held-out rows: questions over nine passages about unseen people, and
natural text. Eight states of each are looked at, as they occur in use: masks giving way to tokens
in a fixed random order (diffusion), or a prefix that grows by as many tokens (causal). By layer,
with head-mean attention: the share of all mass on position 0 and on the strongest key, the number
and spread of anchors under two rules, and how far the anchor set of one state is that of the
next. Beside them, the loss and accuracy of answers. The finished models are measured with the
package; this is the cheap version that can run every few hundred steps.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.common import BOS, EOS, MASK, load_world
from training.evaluate import natural_loss, pad_left, prompt_ids
from training.model import Model
from training.rows import Encoder

STATES = 8
SLOTS = 8
COLUMNS = (
    "step",
    "tokens",
    "domain",
    "layer",
    "position0_share",
    "position0_null",
    "top1_share",
    "top1_is_position0",
    "top1_entropy",
    "anchors_zscore",
    "anchors_excess",
    "anchor_spread",
    "persistence_zscore",
    "persistence_excess",
    "persistence_top1",
)
CURVE = ("step", "tokens", "train_loss", "answer_loss", "answer_accuracy", "natural_loss")


class Probe:
    """The fixed batch; `measure` gives one table row per domain and layer, and one curve row."""

    def __init__(
        self,
        data: Path,
        encode: Encoder,
        *,
        rows: int = 12,
        questions: int = 192,
        length: int = 256,
        seed: int = 0,
    ) -> None:
        package = load_world()
        world, level = package.World(), package.LEVELS["nine"]
        examples = [
            e
            for e in world.examples(level, 60 * rows + questions, seed=99)
            if len(encode(package.answer_part(e.answers[0]))) < SLOTS
        ]
        made = [
            (prompt_ids(e, encode), encode(package.answer_part(e.answers[0]))) for e in examples
        ]
        # Rows of one length need no padding: take the most frequent length.
        common = Counter(len(p) for p, _ in made[questions:]).most_common(1)[0][0]
        same = [(p, a) for p, a in made[questions:] if len(p) == common][:rows]
        world_ids = np.array([[*p, *a, *[EOS] * (SLOTS - len(a))] for p, a in same])
        self.held = np.load(data / "held.npy")
        starts = np.linspace(0, len(self.held) - length, rows).astype(int)
        natural = np.stack(
            [np.concatenate(([BOS], self.held[s : s + length - 1])) for s in starts]
        ).astype(np.int64)
        self.domains = {"world": (world_ids, SLOTS), "natural": (natural, 8 * STATES)}
        self.questions = made[:questions]
        self.seed = seed

    @torch.no_grad()
    def measure(
        self, model: Model, step: int, tokens: int, train_loss: float
    ) -> tuple[list[dict], dict]:
        rows = []
        for domain, (ids, fresh) in self.domains.items():
            received, mass = self._states(
                model, torch.tensor(ids, device=model.embed.device), fresh
            )
            table = _summary(
                [torch.stack(r) for r in received],
                [torch.stack(m) for m in mass],
                causal=model.causal,
            )
            for layer in range(model.config.layers):
                rows.append(
                    {
                        "step": step,
                        "tokens": tokens,
                        "domain": domain,
                        "layer": layer,
                        **{name: float(values[layer]) for name, values in table.items()},
                    }
                )
        loss, accuracy = self._answers(model)
        natural = natural_loss(model, self.held, length=256, rows=16, draws=4)["nats_per_token"]
        return rows, {
            "step": step,
            "tokens": tokens,
            "train_loss": train_loss,
            "answer_loss": loss,
            "answer_accuracy": accuracy,
            "natural_loss": natural,
        }

    def _states(
        self, model: Model, ids: Tensor, fresh: int
    ) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """received c_j and mass m_j, [state][layer] -> (rows, keys so far)."""
        length, each = ids.shape[1], fresh // STATES
        received: list[list[Tensor]] = [[] for _ in range(STATES)]
        mass: list[list[Tensor]] = [[] for _ in range(STATES)]
        if model.causal:

            def look_once(_: int, q: Tensor, k: Tensor) -> None:
                # Rows of a causal model do not change as it writes: one forward holds all states.
                sums = _attention(q, k, causal=True).cumsum(1)  # (rows, queries, keys)
                for s in range(STATES):
                    n = length - fresh + s * each
                    column = sums[:, n - 1, :n]
                    seen_by = torch.arange(n, 0, -1, device=ids.device)
                    received[s].append(column / seen_by)
                    mass[s].append(column / n)

            model.hidden(ids, look=look_once)
            return received, mass
        order = list(range(length - fresh, length))
        random.Random(self.seed).shuffle(order)
        for s in range(STATES):
            canvas = ids.clone()
            canvas[:, order[s * each :]] = MASK

            def look(_: int, q: Tensor, k: Tensor, s: int = s) -> None:
                column = _attention(q, k, causal=False).sum(1)
                received[s].append(column / length)
                mass[s].append(column / length)

            model.hidden(canvas, look=look)
        return received, mass

    def _answers(self, model: Model) -> tuple[float, float]:
        """Loss over answer tokens and their <eos>; accuracy of whole answers.

        Causal: each token given the true ones before it, which for a whole answer is greedy
        decoding. Diffusion: all places masked, one forward.
        """
        losses, hits = [], 0
        for start in range(0, len(self.questions), 64):
            batch = self.questions[start : start + 64]
            told = [[*a, *[EOS] * (SLOTS - len(a))] for _, a in batch]
            want = torch.tensor(told, device=model.embed.device)
            tails = told if model.causal else [[MASK] * SLOTS] * len(batch)
            ids, visible, positions = pad_left(
                [[*p, *t] for (p, _), t in zip(batch, tails, strict=True)], model.embed.device
            )
            hidden = model.hidden(ids, visible=visible, positions=positions)
            hidden = hidden.view(*ids.shape, -1)
            hidden = hidden[:, -SLOTS - 1 : -1] if model.causal else hidden[:, -SLOTS:]
            logits = torch.nn.functional.linear(hidden, model.embed.to(hidden.dtype)).float()
            logits[..., MASK] = -torch.inf
            counts = torch.tensor([len(a) + 1 for _, a in batch], device=want.device)[:, None]
            real = torch.arange(SLOTS, device=want.device)[None] < counts
            nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), want, reduction="none")
            losses.append((nll * real).sum() / real.sum())
            hits += int(((logits.argmax(-1) == want) | ~real).all(1).sum())
        return float(torch.stack(losses).mean()), hits / len(self.questions)


def _attention(q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
    """Head-mean attention, (rows, queries, keys), float32."""
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    if causal:
        n = scores.shape[-1]
        hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1).mean(1)


def anchors(received: Tensor, rule: str) -> Tensor:
    """Which keys are anchors, (rows, keys), by the definitions ZScore(3) or Excess(3)."""
    n = received.shape[-1]
    if rule == "zscore":
        spread = received.std(-1, keepdim=True, correction=0)
        return received > received.mean(-1, keepdim=True) + 3 * spread
    sums = n * received
    others = (sums.sum(-1, keepdim=True) - sums) / (n - 1)
    return sums > others + 3


def _summary(received: list[Tensor], mass: list[Tensor], *, causal: bool) -> dict[str, Tensor]:
    """By layer, means over states and examples; inputs are (layers, rows, keys), one a state."""
    top = torch.stack([m.argmax(-1) for m in mass])  # (states, layers, rows)
    sizes = [m.shape[-1] for m in mass]
    null = np.mean([sum(1 / i for i in range(1, n + 1)) / n if causal else 1 / n for n in sizes])
    layers = top.shape[1]
    same = top[:, None, :, :, None] == top[None, :, :, None, :]  # pairs of (state, row)
    share = same.float().mean((1, 4))  # how common each top key is in its layer
    out = {
        "position0_share": torch.stack([m[..., 0] for m in mass]).mean((0, 2)),
        "position0_null": torch.full((layers,), float(null)),
        "top1_share": torch.stack([m.max(-1).values for m in mass]).mean((0, 2)),
        "top1_is_position0": (top == 0).float().mean((0, 2)),
        "top1_entropy": -share.log().mean((0, 2)),  # of the histogram of top keys
        "persistence_top1": (top[1:] == top[:-1]).float().mean((0, 2)),
    }
    for rule in ("zscore", "excess"):
        sets = [anchors(r, rule) for r in received]
        out[f"anchors_{rule}"] = torch.stack([s.sum(-1).float() for s in sets]).mean((0, 2))
        jaccards = []
        for first, b in pairwise(sets):
            a = torch.nn.functional.pad(first, (0, b.shape[-1] - first.shape[-1]))
            jaccards.append((a & b).sum(-1) / (a | b).sum(-1))  # NaN: two empty sets say nothing
        out[f"persistence_{rule}"] = torch.stack(jaccards).transpose(0, 1).flatten(1).nanmean(1)
        if rule == "zscore":
            places = [torch.arange(s.shape[-1], device=s.device) / s.shape[-1] for s in sets]
            where = torch.cat(
                [s.transpose(0, 1).reshape(-1, layers, s.shape[-1]).sum(0) * 1.0 for s in sets], 1
            )  # (layers, all keys): anchors counted
            place = torch.cat(places)
            n = where.sum(1)
            mean, square = (where * place).sum(1) / n, (where * place * place).sum(1) / n
            out["anchor_spread"] = (square - mean * mean).clamp(min=0).sqrt()
    return {k: v.cpu() for k, v in out.items()}


class Tables:
    """emergence.csv and curve.csv of a run; rows after a resumed step are dropped first."""

    def __init__(self, folder: Path, step: int) -> None:
        self.paths = {
            "emergence": (folder / "emergence.csv", COLUMNS),
            "curve": (folder / "curve.csv", CURVE),
        }
        for path, columns in self.paths.values():
            kept = []
            if path.exists() and step:
                with path.open(newline="") as file:
                    kept = [r for r in csv.DictReader(file) if int(r["step"]) <= step]
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(kept)

    def add(self, rows: list[dict], curve: dict) -> None:
        for name, new in (("emergence", rows), ("curve", [curve])):
            path, columns = self.paths[name]
            with path.open("a", newline="") as file:
                writer = csv.DictWriter(file, columns)
                for row in new:
                    writer.writerow(
                        {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
                    )
