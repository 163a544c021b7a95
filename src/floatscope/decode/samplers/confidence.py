"""Confidence: a sampler that reveals the most confident positions."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Confidence(Sampler):
    """Reveal the positions whose proposed token has the highest probability.

    LLaDA's `low_confidence` remasking (2502.09992), token by token as its code decodes, except that the
    mask token is never proposed. MaskGIT (2202.04200) has the same order with another schedule.
    """

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.confidence
