"""AttentionGuided: a sampler that reveals together what hardly looks at each other."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...errors import UsageError
from ...models.select import Choice, chosen
from .base import Guess, Sampler, ranked


@dataclass(frozen=True)
class AttentionGuided(Sampler):
    """The surest mask, then every sure one that is coupled to none taken before it.

    After DAPD (2603.12996): attention between masks stands for dependence, and a step reveals a set of
    masks without an edge between them, taken greedily by falling confidence. There is an edge where the
    attention between two masks (mean over `layers`, all by default, and heads; the larger of the two
    directions) is more than `edge` times what uniform attention would give. Others than the surest must
    have a confidence of `least`. The idea is the paper's; `edge`, `least`, the layers and the order are
    ours. Takes as many steps as it needs.
    """

    edge: float = 1.0
    least: float = 0.5
    layers: Choice = None

    @property
    def adaptive(self) -> bool:
        return True

    def check_fields(self) -> None:
        super().check_fields()
        if self.edge < 0 or not math.isfinite(self.edge):
            raise UsageError(f"AttentionGuided: edge = {self.edge}", "Use 0 or more.")
        if not 0 <= self.least <= 1:
            raise UsageError(f"AttentionGuided: least = {self.least}", "Use 0 to 1.")
        if self.steps is not None:
            raise UsageError(
                "AttentionGuided takes as many steps as it needs",
                "Leave steps out; change edge or least.",
            )

    def listens_to(self, n_layers: int) -> frozenset[int]:
        return frozenset(chosen(self.layers, n_layers, "layer"))

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        assert guess.coupling is not None
        score = guess.confidence.masked_fill(guess.held, -1.0)
        order = ranked(score, guess.masked).argsort(-1)  # (b, w): positions, the surest first
        edges = guess.coupling > self.edge
        sure = guess.masked & ~guess.held & (guess.confidence >= self.least)
        prompt = torch.arange(len(order), device=order.device)
        taken = torch.zeros_like(guess.masked)
        taken[prompt, order[:, 0]] = guess.masked[prompt, order[:, 0]]
        for place in range(1, order.shape[1]):
            at = order[:, place]
            free = ~(edges[prompt, at] & taken).any(-1)
            taken[prompt, at] = sure[prompt, at] & free
        return taken
