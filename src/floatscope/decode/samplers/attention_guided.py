"""AttentionGuided: a sampler that reveals positions together if their attention to each other is low."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...errors import UsageError
from ...models.select import Choice, chosen
from .base import Guess, Sampler, ranked

VARIANTS = ("staged", "direct")
_LAST = 0.3  # share of the layers whose attention is read
_LATE, _SURE = 0.5, 0.9  # for "staged": share of the answer that is revealed, and least confidence


@dataclass(frozen=True)
class AttentionGuided(Sampler):
    """Reveal masks that hardly attend to each other, beginning with strongly attended, confident positions.

    The method is DAPD (2603.12996), as in its authors' code. The dependence s between two masks is the
    mean of the attention in both directions, over the heads of the last 30 % of the layers (or of
    `layers`); p is the probability of a mask's proposed token. Masks are taken in falling order of
    p · Σ s, where the sum is over all other masks. A mask is skipped if its s with a mask that is already
    taken exceeds τ times its largest s with any mask. τ grows from `tau_min` to `tau_max` with the share
    of the answer that is revealed. The sampler takes as many steps as it needs.

    Args:
        tau_min: τ at the first step, 0 to 1, default 0.01.
        tau_max: τ when the answer is complete, from `tau_min` to 1, default 0.15.
        variant: "staged" (default) also reveals all masks with p ≥ 0.9 once half of the answer is
            revealed; "direct" first reveals all masks with p = 1.
        layers: layers whose attention gives s, as a number, a slice or a sequence; None (default) is the
            last 30 %.
    """

    tau_min: float = 0.01
    tau_max: float = 0.15
    variant: str = "staged"
    layers: Choice = None
    adaptive: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        if not 0 <= self.tau_min <= self.tau_max <= 1:
            raise UsageError(
                f"AttentionGuided: tau_min = {self.tau_min}, tau_max = {self.tau_max}",
                "Use 0 ≤ tau_min ≤ tau_max ≤ 1.",
            )
        if self.variant not in VARIANTS:
            raise UsageError(
                f"AttentionGuided: variant = {self.variant!r}", f"Use {' or '.join(VARIANTS)}."
            )
        if self.steps is not None:
            raise UsageError(
                "AttentionGuided takes as many steps as it needs",
                "Leave steps out; change tau_min or tau_max.",
            )

    def listens_to(self, n_layers: int) -> frozenset[int]:
        if self.layers is None:
            return frozenset(range(min(int(n_layers * (1 - _LAST)), n_layers - 1), n_layers))
        return frozenset(chosen(self.layers, n_layers, "layer"))

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        assert guess.coupling is not None
        assert guess.decided_share is not None
        free = guess.masked & ~guess.postponed
        free = torch.where(free.any(-1, keepdim=True), free, guess.masked)
        at_once = torch.zeros_like(free)
        if self.variant == "direct":
            at_once = free & (guess.confidence >= 1)
        depends = guess.coupling * (guess.masked[:, :, None] & guess.masked[:, None])
        depends.diagonal(dim1=-2, dim2=-1).zero_()
        tau = self.tau_min + (self.tau_max - self.tau_min) * guess.decided_share
        edges = depends / depends.amax(-1, keepdim=True).clamp(min=1e-8) > tau[:, None, None]
        score = depends.sum(-1) * guess.confidence
        selected = _independent(score, edges, free & ~at_once) | at_once
        if self.variant == "staged":
            selected |= free & (guess.confidence >= _SURE) & (guess.decided_share >= _LATE)[:, None]
        return selected


def _independent(score: Tensor, edges: Tensor, free: Tensor) -> Bool[Tensor, "b w"]:
    """Choose positions in `free` by falling score, and skip each one with an edge to a chosen position."""
    order = ranked(score, free).argsort(-1)  # (b, w): positions, the highest score first
    prompt = torch.arange(len(order), device=order.device)
    selected = torch.zeros_like(free)
    for position in order.unbind(-1):
        selected[prompt, position] = free[prompt, position] & ~(
            edges[prompt, position] & selected
        ).any(-1)
    return selected
