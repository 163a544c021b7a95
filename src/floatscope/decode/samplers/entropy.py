"""Entropy: a sampler."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


def entropy(guess: Guess) -> Float[Tensor, "b w"]:
    """−Σ p ln p of each position's distribution."""
    p = guess.log_p.exp()
    return -(p * guess.log_p.clamp_min(-1e30)).sum(-1)  # 0 · ln 0 = 0


@dataclass(frozen=True)
class Entropy(Sampler):
    """Reveal where the distribution is sharpest: the lowest entropy.

    Dream's `entropy` order (2508.15487).
    """

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return -entropy(guess)
