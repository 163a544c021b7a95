"""LLaDA2Edit: the sampler of LLaDA 2.1, which overwrites tokens of the block it is at."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from ...errors import UsageError
from .base import Guess, check_blocks
from .llada2 import LLaDA2


@dataclass(frozen=True)
class LLaDA2Edit(LLaDA2):
    """As LLaDA2, and overwrite tokens of the block where another has p > edit_threshold.

    LLaDA 2.1 (2602.08676), as its generation code has it: a step reveals masks with p > `threshold`, one at
    least, and overwrites those of the answer's tokens in the block for which it proposes another with
    p > `edit_threshold`. When the block is full it goes on overwriting until a step changes nothing, for
    `more_steps` at most. Its card recommends .7 and .5 ("quality") or .5 and 0 ("speed"). At a temperature
    above 0 only masks are drawn for; what overwrites is the arg-max.
    """

    edit_threshold: float = 0.9
    more_steps: int = 16
    takes_back: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        check_blocks(self, edit_threshold=self.edit_threshold)
        if self.more_steps < 0:
            raise UsageError(f"LLaDA2Edit: more_steps = {self.more_steps}", "Use 0 or more.")

    def most_steps(self, n_blocks: int) -> int:
        return self.n_steps + n_blocks * self.more_steps

    def overwrite(self, guess: Guess) -> Bool[Tensor, "b w"]:
        stands = guess.in_block & ~guess.masked
        return stands & (guess.confidence > self.edit_threshold)

    def over(self, left: bool, full: int, changed: bool) -> bool:
        return not left and (full >= self.more_steps or (full > 0 and not changed))
