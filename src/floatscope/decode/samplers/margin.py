"""Margin: a sampler that reveals the positions where p of the likeliest token exceeds the second p most."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Margin(Sampler):
    """Reveal the positions with the largest margin between the two most likely tokens, p₁ − p₂.

    Positions are ordered as by Kim et al. 2025 (arXiv 2502.06768) and revealed on LLaDA's even schedule.
    """

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        first, second = guess.log_p.topk(2, dim=-1).values.exp().unbind(-1)
        return first - second
