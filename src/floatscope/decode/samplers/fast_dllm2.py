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
    """A block's first token by the row before it; then sub-block by sub-block, all with p > threshold.

    Fast-dLLM v2 (2509.26328), as fragments of its decoding code have it, with its examples' settings. A block
    that begins with a mask begins with the token that the last row of the finished context predicts,
    revealed alone. Then, in the first sub-block of `sub_block` places that has masks, all with
    p > `threshold` are revealed, and the surest in any case. Its cache of sub-blocks, which approximates,
    is not used.
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
        here = guess.masked & (part == first)
        return here & ((guess.confidence > self.threshold) | (ranked(guess.confidence, here) == 0))
