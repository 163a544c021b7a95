"""SDAR: the sampler of SDAR and TraDo."""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

from .base import Adaptive, Guess, sure_or_best


@dataclass(frozen=True)
class SDAR(Adaptive):
    """Draw a token for every mask; reveal masks with p > threshold, or as many as the schedule requires.

    The method is SDAR's (2510.06303), `low_confidence_dynamic` of its generation code with the published
    settings. p is the probability of the drawn token at the temperature of the draw. The published code
    may overwrite tokens if the schedule requires more positions than there are masks, and it extends the
    last block to full length; this sampler does neither. It takes as many steps as it needs.

    Args:
        temperature: temperature of the draws, default 1; 0 takes the arg-max.
        threshold: probability above which a token is revealed, default 0.85.
        block_steps: steps over which the schedule divides a whole block; None (default) is one position
            per step.
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
