"""Remasked: turn answer positions back into masks after one step, to test which tokens depend on them."""

from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model
from ...models.select import Choice, chosen
from ..overruling import ActiveOverrule, Overruling, check_step


@dataclass(frozen=True)
class Remasked(Overruling):
    """Turn positions of the answer back into masks after one step, to be revealed again later.

    The number of steps does not change: samplers divide the remaining masks over the remaining steps, so
    later steps reveal more. Adaptive samplers take more steps, at most one per position; the last of
    these steps reveals all masks. Positions in the last step of a block or in a finished block are
    refused, because no later step could reveal them. `Decoding.info["remasked"]` counts the positions
    that held a token. For diffusion models.

    Args:
        positions: positions in the answer, as a number, a slice or a sequence; all by default.
        step: step after which the positions are masked, from 0 (default).
    """

    positions: Choice = None
    step: int = 0

    def check(self, model: Model) -> None:
        if not model.is_diffusion:
            raise UsageError(
                f"Remasked restores masks, but {model.name} is autoregressive",
                "Use ForceToken(position, token) to change a generated token.",
            )
        check_step(self.step, "Remasked")

    def probes(self, model: Model) -> "list[Remasked]":
        """Return a version that masks the whole answer after the first step.

        Args:
            model (Model): the model on which to try the intervention.
        """
        return [replace(self, positions=None, step=0)]

    def acting(self, model: Model) -> "_Active":
        return _Active(model, self.positions, self.step)


class _Active(ActiveOverrule):
    name = "remasked"

    def __init__(self, model: Model, positions: Choice, step: int) -> None:
        super().__init__(model, step)
        self.positions = positions

    def changed(self, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
        length = canvas.shape[1] - state.prompt_end
        columns = [state.prompt_end + n for n in chosen(self.positions, length, "position")]
        assert self.model.mask_id is not None
        canvas = canvas.clone()
        canvas[:, columns] = self.model.mask_id
        return canvas
