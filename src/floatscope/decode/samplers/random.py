"""Random: a sampler that reveals positions in random order."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Random(Sampler):
    """Reveal positions in random order, as the training objective assumes.

    The method is LLaDA's `random` remasking (2502.09992). Each step reveals as many positions as with
    `Confidence`.
    """

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.noise
