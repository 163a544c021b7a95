"""FastDLLM2: the sampler of Fast-dLLM v2."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...errors import UsageError
from .base import Adaptive, Guess, ranked


@dataclass(frozen=True)
class FastDLLM2(Adaptive):
    """Reveal a block's first token from the row before it; then, by sub-block, masks with p > threshold.

    The method is that of Fast-dLLM v2 (2509.26328), after the published fragments of its decoding code,
    with the settings of its examples. The last row of the finished context predicts the first token of a
    block that begins with a mask; that token is revealed alone. Later steps reveal, in the first
    sub-block that has masks, the most confident token and all tokens with p > `threshold`. The
    approximate sub-block cache of the publication is not used. For block models.

    Args:
        threshold: probability above which a token is revealed, default 0.9.
        sub_block: positions per sub-block, default 8.
    """

    sub_block: int = 8
    needs_blocks: ClassVar[bool] = True
    causal_first: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        if self.sub_block < 1:
            raise UsageError(f"FastDLLM2: sub_block = {self.sub_block}", "Use 1 or more.")

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        part = guess.place // self.sub_block
        last = torch.iinfo(part.dtype).max
        first = part.masked_fill(~guess.masked, last).amin(-1, keepdim=True)
        in_part = guess.masked & (part == first)
        return in_part & (
            (guess.confidence > self.threshold) | (ranked(guess.confidence, in_part) == 0)
        )
