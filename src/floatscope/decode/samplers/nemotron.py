"""Nemotron: the sampler of Nemotron-Labs-Diffusion."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from .base import Adaptive, Guess, ranked


@dataclass(frozen=True)
class Nemotron(Adaptive):
    """A block's first token by the causal row before it; then all with p ≥ threshold, at least one.

    Nemotron-Labs-Diffusion, as its generation code has it. The finished context is causal, and its last row
    predicts the block's first token as a causal model does: it is revealed alone, before the others.
    """

    needs_blocks: ClassVar[bool] = True
    causal_first: ClassVar[bool] = True

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        surest = ranked(guess.confidence, guess.masked) == 0
        return guess.masked & ((guess.confidence >= self.threshold) | surest)
