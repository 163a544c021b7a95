"""LLaDA2: the sampler of LLaDA 2.0."""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from .base import Adaptive, Guess, sure_or_best


@dataclass(frozen=True)
class LLaDA2(Adaptive):
    """Reveal all with p > threshold; where they are fewer than the schedule asks for, that many.

    LLaDA 2.0 (2512.15745), as its generation code has it: the schedule divides a whole block evenly over
    `block_steps`, one place a step by default. Published for blocks of 32 on the model's grid, where the
    last block is filled up to 32; here it ends where the answer does.
    """

    threshold: float = 0.95
    block_steps: int | None = None

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        return sure_or_best(guess, guess.confidence, self.threshold, self.block_steps)
