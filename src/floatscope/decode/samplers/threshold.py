"""Threshold: a sampler that reveals everything it is sure of."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from ...errors import UsageError
from .base import Guess, Sampler, ranked


@dataclass(frozen=True)
class Threshold(Sampler):
    """Reveal all with p ≥ threshold; with `factor`, the n best while p_(n) ≥ 1 − f/(n+1).

    Fast-dLLM (2505.22618), as its code has it. At least one per step, as many steps as it needs. With
    `factor`, the last mask is also revealed where it alone fails, so that the last two always go
    together. The paper's rule, the largest n with (n + 1)(1 − p_(n)) < f, has no such case and leaves
    out equality. Published in blocks of 32 with a cache that approximates; here nothing is approximated.
    """

    threshold: float = 0.9
    factor: float | None = None
    adaptive: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"Threshold: threshold = {self.threshold}", "Use a probability.")
        if self.factor is not None and self.factor <= 0:
            raise UsageError(f"Threshold: factor = {self.factor}", "Use a positive number.")
        if self.steps is not None:
            raise UsageError(
                "Threshold takes as many steps as it needs", "Leave steps out; change threshold."
            )

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        rank = ranked(guess.confidence, guess.masked)
        if self.factor is None:
            sure = guess.confidence >= self.threshold
        else:
            # Once one fails, all behind it fail: p falls with rank, the bar only rises.
            sure = (guess.confidence >= 1 - self.factor / (rank + 2)) | (rank == 0)
            last = guess.masked.sum(-1, keepdim=True) - 1
            sure |= (rank == last) & ((sure & guess.masked).sum(-1, keepdim=True) == last)
        return (sure | (rank == 0)) & guess.masked
