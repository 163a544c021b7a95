"""Remasked: positions of the answer are put back to mask at step t. What hangs on what was revealed?"""

from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model
from ...models.select import Choice, chosen
from ..overruling import ActingOverrule, Overruling, check_step


@dataclass(frozen=True)
class Remasked(Overruling):
    """After step `step`, `positions` of the answer (all by default) are masks again, to be revealed later.

    The number of steps stays as it is: samplers divide the masks that are left over the steps that are
    left, so that later steps reveal more at a time (one that takes as many steps as it needs takes more of
    them, and at most one for each position: the last of those reveals the rest). At the last step of a
    block, or in a block that is over, nothing could reveal them: that is refused.
    `Decoding.info["remasked"]` counts the positions that held a token.
    """

    positions: Choice = None
    step: int = 0

    def check(self, model: Model) -> None:
        if not model.is_diffusion:
            raise UsageError(
                f"Remasked puts masks back, and {model.name} is autoregressive",
                "Use ForceToken(position, token) to change what it generates.",
            )
        check_step(self.step, "Remasked")

    def probes(self, model: Model) -> "list[Remasked]":
        return [replace(self, positions=None, step=0)]

    def acting(self, model: Model) -> "_Acting":
        return _Acting(model, self.positions, self.step)


class _Acting(ActingOverrule):
    name = "remasked"

    def __init__(self, model: Model, positions: Choice, step: int) -> None:
        super().__init__(model, step)
        self.positions = positions

    def changed(self, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
        length = canvas.shape[1] - state.prompt_end
        at = [state.prompt_end + n for n in chosen(self.positions, length, "position")]
        assert self.model.mask_id is not None
        canvas = canvas.clone()
        canvas[:, at] = self.model.mask_id
        return canvas
