"""Confidence: a sampler."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Confidence(Sampler):
    """Reveal where the model is surest: the highest p of its own choice.

    LLaDA's low_confidence remasking (2502.09992), token by token as its code decodes, but that the mask
    itself is never proposed. MaskGIT (2202.04200) has the order, and another schedule."""

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.confidence
