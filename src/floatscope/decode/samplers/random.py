"""Random: a sampler."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Random(Sampler):
    """Reveal at random, as the training objective assumes.

    LLaDA's `random` remasking (2502.09992): as many at each step as with `Confidence`."""

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.noise
