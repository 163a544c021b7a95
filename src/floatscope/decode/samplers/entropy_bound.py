"""EntropyBound: a sampler that reveals positions together while the bound on their joint entropy is small."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from ...errors import UsageError
from .base import Guess, Sampler, ranked
from .entropy import entropy


@dataclass(frozen=True)
class EntropyBound(Sampler):
    """Reveal positions in order of entropy while the sum of their entropies minus the largest is ≤ gamma.

    The method is EB-Sampler (Ben-Hamu et al. 2025, arXiv 2505.24857) with positions sorted by entropy; the
    paper also sorts by confidence and by margin. The sampler reveals at least one position per step and
    takes as many steps as it needs.

    Args:
        gamma: bound in nats, 0 or more, default 0.01. Larger values reveal more positions per step.
    """

    gamma: float = 0.01
    adaptive: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        if self.gamma < 0:
            raise UsageError(f"EntropyBound: gamma = {self.gamma}", "Use 0 or more.")
        if self.steps is not None:
            raise UsageError(
                "EntropyBound takes as many steps as it needs", "Leave steps out; change gamma."
            )

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        h = (
            entropy(guess)
            .double()
            .masked_fill(guess.postponed, math.inf)
            .masked_fill(~guess.masked, 0)
        )
        rank = ranked(-h, guess.masked)
        # ascending; forbidden positions last, as 0
        sorted_h = h.new_zeros(h.shape).scatter(-1, rank, h)
        # For forbidden positions this is ∞ − ∞, which is not ≤ gamma.
        together = sorted_h.cumsum(-1) - sorted_h.cummax(-1).values <= self.gamma
        together[:, 0] = True
        return together.gather(-1, rank) & guess.masked
