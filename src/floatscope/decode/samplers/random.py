"""Random: a sampler."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Random(Sampler):
    """Reveal at random, as the training objective assumes."""

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.noise
