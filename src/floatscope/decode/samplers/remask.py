"""Remask: a sampler that turns revealed tokens into masks again."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import UsageError
from .base import Guess, Sampler, best


@dataclass(frozen=True)
class Remask(Sampler):
    """Reveal a share `hold` by confidence, then remask and reveal in each step, then reveal all masks.

    The method is a deterministic variant of ReMDM's loop (2503.00307; the sampler `ReMDM` is the
    published method): fixed numbers replace probabilities, and positions are revealed in order of
    confidence. The steps of each block have three phases. In the middle phase every step remasks a share
    of the revealed tokens and reveals the same number of masks. There may be more steps than tokens.

    Args:
        hold: share of the block that is revealed before the middle phase, between 0 and 1, default 0.75.
        loop: share of the steps in the middle phase, between 0 and 1, default 0.5.
        share: share of the revealed tokens that each middle step remasks, between 0 and 1, default 0.2.
        by: tokens to remask: "random" (default), or "confidence" for those with the lowest p when
            revealed.
    """

    hold: float = 0.75
    loop: float = 0.5
    share: float = 0.2
    by: str = "random"
    takes_back: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        for name in ("hold", "loop", "share"):
            if not 0 < getattr(self, name) < 1:
                raise UsageError(
                    f"Remask: {name} = {getattr(self, name)}", "Use a share between 0 and 1."
                )
        if self.by not in ("random", "confidence"):
            raise UsageError(f"Remask: by = {self.by!r}", "Use 'random' or 'confidence'.")

    def _phases(self, steps: int) -> tuple[int, int]:
        """Return the first step of the middle phase and the first step after it."""
        looping = round(steps * self.loop)
        first = max(1, round((steps - looping) * self.hold))
        return first, min(first + looping, steps - 1)

    def quota(
        self, masked: Int[Tensor, " b"], width: int, step: int, steps: int
    ) -> Int[Tensor, " b"]:
        first, after = self._phases(steps)
        if step >= after:
            return super().quota(masked, width, step, steps)
        if step >= first:  # as many as `revise` remasks, so the number of masks stays constant
            return self._taken_back(width - masked)
        to_reveal = masked - math.ceil((1 - self.hold) * width)
        return super().quota(to_reveal.clamp(min=1), width, step, first)

    def _taken_back(self, committed: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (committed.double() * self.share).round().long().clamp(min=1)

    def revise(
        self, guess: Guess, revealed_as: Float[Tensor, "b w"], step: int, steps: int
    ) -> Bool[Tensor, "b w"]:
        first, after = self._phases(steps)
        if not first <= step < after:
            return torch.zeros_like(guess.masked)
        committed = guess.in_block & ~guess.masked
        worst = guess.noise if self.by == "random" else -revealed_as
        return best(worst, committed, self._taken_back(committed.sum(-1)))

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        return guess.confidence
