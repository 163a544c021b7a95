"""SDAR: the sampler of SDAR and TraDo."""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from .base import Adaptive, Guess, sure_or_best


@dataclass(frozen=True)
class SDAR(Adaptive):
    """Draw a token for every mask; reveal all with p > threshold, or as many as the schedule asks for.

    SDAR (2510.06303), `low_confidence_dynamic` of its generation code with its settings: tokens are drawn at
    temperature 1, and p is that of the token drawn, at that temperature. The schedule divides a whole block
    evenly over `block_steps`, one place a step by default. The published code may overwrite tokens where
    it asks for more than there are masks, and fills up the last block; here neither happens.
    """

    temperature: float = 1.0
    threshold: float = 0.85
    block_steps: int | None = None

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        p = guess.confidence
        if self.temperature not in (0.0, 1.0):
            warm = (guess.logits / self.temperature).softmax(-1)
            p = warm.gather(-1, guess.token[..., None]).squeeze(-1)
        return sure_or_best(guess, p, self.threshold, self.block_steps)
