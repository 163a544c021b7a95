"""LLaDA2: the sampler of LLaDA 2.0."""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from .base import Adaptive, Guess, sure_or_best


@dataclass(frozen=True)
class LLaDA2(Adaptive):
    """Reveal all masks with p > threshold, or the most confident masks if the schedule requires more.

    The method is that of LLaDA 2.0 (2512.15745), as in its generation code. The method was published for
    blocks of 32 on the model's grid, with the last block filled up to 32; here the last block ends with
    the answer. The sampler takes as many steps as it needs.

    Args:
        threshold: probability above which a token is revealed, default 0.95.
        block_steps: steps over which the schedule divides a whole block; None (default) is one position
            per step.
    """

    threshold: float = 0.95
    block_steps: int | None = None

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        return sure_or_best(guess, guess.confidence, self.threshold, self.block_steps)
