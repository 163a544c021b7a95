"""Nemotron: the sampler of Nemotron-Labs-Diffusion."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from .base import Adaptive, Guess, ranked


@dataclass(frozen=True)
class Nemotron(Adaptive):
    """Reveal a block's first token from the causal row before it; then all masks with p ≥ threshold.

    The method is that of Nemotron-Labs-Diffusion, as in its generation code. The finished context is
    causal, and its last row predicts the block's first token as a causal model does. That token is
    revealed alone, in the block's first step. Later steps reveal at least one token. For block models.

    Args:
        threshold: probability from which a token is revealed, default 0.9.
    """

    needs_blocks: ClassVar[bool] = True
    causal_first: ClassVar[bool] = True

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        surest = ranked(guess.confidence, guess.masked) == 0
        return guess.masked & ((guess.confidence >= self.threshold) | surest)
