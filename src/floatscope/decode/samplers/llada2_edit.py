"""LLaDA2Edit: the sampler of LLaDA 2.1, which overwrites tokens of the current block."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from ...errors import UsageError
from .base import Guess, check_blocks
from .llada2 import LLaDA2


@dataclass(frozen=True)
class LLaDA2Edit(LLaDA2):
    """Reveal as LLaDA2 does, and overwrite tokens of the block if another token has p > edit_threshold.

    The method is that of LLaDA 2.1 (2602.08676), as in its generation code. A step reveals masks with
    p > `threshold`, at least one mask, and overwrites the answer's tokens in the block for which another
    token has p > `edit_threshold`. A block without masks is overwritten until a step changes nothing. The
    model card recommends thresholds of 0.7 and 0.5 ("quality") or 0.5 and 0 ("speed"). Above temperature
    0, tokens are drawn for masks only; overwriting uses the arg-max.

    Args:
        edit_threshold: probability above which a token is overwritten, default 0.9.
        more_steps: largest number of overwriting steps after a block is full, default 16.
    """

    edit_threshold: float = 0.9
    more_steps: int = 16
    takes_back: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        check_blocks(self, edit_threshold=self.edit_threshold)
        if self.more_steps < 0:
            raise UsageError(f"LLaDA2Edit: more_steps = {self.more_steps}", "Use 0 or more.")

    def max_steps(self, n_blocks: int) -> int:
        return self.n_steps + n_blocks * self.more_steps

    def overwrite(self, guess: Guess) -> Bool[Tensor, "b w"]:
        decided = guess.in_block & ~guess.masked
        return decided & (guess.confidence > self.edit_threshold)

    def over(self, has_masks: bool, full: int, changed: bool) -> bool:
        return not has_masks and (full >= self.more_steps or (full > 0 and not changed))
