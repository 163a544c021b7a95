"""Entropy: a sampler that reveals the positions whose token distributions have the lowest entropy."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


def entropy(guess: Guess) -> Float[Tensor, "b w"]:
    """Return the entropy −Σ p ln p of each position's token distribution, in nats."""
    p = guess.log_p.exp()
    return -(p * guess.log_p.clamp_min(-1e30)).sum(-1)  # 0 · ln 0 = 0


@dataclass(frozen=True)
class Entropy(Sampler):
    """Reveal the positions whose token distribution has the lowest entropy.

    Positions are ordered as by Dream's `entropy` (2508.15487) and revealed on LLaDA's even schedule, as in
    the comparisons of 2508.13021. The sampler `Dream` has Dream's own schedule and top-p.
    """

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return -entropy(guess)
