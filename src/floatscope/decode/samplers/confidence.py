"""Confidence: a sampler that reveals the most confident positions."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .base import Guess, Sampler


@dataclass(frozen=True)
class Confidence(Sampler):
    """Reveal the positions whose proposed token has the highest probability.

    The method is LLaDA's `low_confidence` remasking (2502.09992). The tokens equal those of LLaDA's code,
    except that the mask token is never proposed. MaskGIT (2202.04200) reveals in the same order on another
    schedule.
    """

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.confidence
