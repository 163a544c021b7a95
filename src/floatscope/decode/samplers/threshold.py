"""Threshold: a sampler that reveals all confident positions at once."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from ...errors import UsageError
from .base import Guess, Sampler, ranked


@dataclass(frozen=True)
class Threshold(Sampler):
    """Reveal all masks with p ≥ threshold, or, with `factor`, above a bound that rises with their number.

    The method is that of Fast-dLLM (2505.22618), as in its code. The sampler reveals at least one
    position per step and takes as many steps as it needs. With `factor` f, a step reveals the n most
    confident masks, where n is the largest number with p_(n) ≥ 1 − f/(n + 1), and p_(n) is the n-th
    highest probability. The remaining mask is also revealed if it is the only one that misses the bound,
    so the last two masks are always revealed together. The paper's rule, the largest n with
    (n + 1)(1 − p_(n)) < f, has no such exception and excludes equality. The method was published with
    blocks of 32 and an approximate cache; here the computation is exact.

    Args:
        threshold: probability from which a token is revealed, 0 to 1, default 0.9. Not used with
            `factor`.
        factor: f of the rule above, a positive number; None (default) uses `threshold`.
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
            # Once a rank fails, all later ranks fail, because p falls with rank and the bound rises.
            sure = (guess.confidence >= 1 - self.factor / (rank + 2)) | (rank == 0)
            last = guess.masked.sum(-1, keepdim=True) - 1
            sure |= (rank == last) & ((sure & guess.masked).sum(-1, keepdim=True) == last)
        return (sure | (rank == 0)) & guess.masked
