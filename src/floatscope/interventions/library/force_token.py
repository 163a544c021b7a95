"""ForceToken: set a position of the answer to a given token after one step, and continue the decoding."""

from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from ...decode.state import State
from ...errors import UsageError
from ...models import Model
from ..overruling import ActiveOverrule, Overruling, check_step


@dataclass(frozen=True)
class ForceToken(Overruling):
    """Set `position` of the answer to `token` after step `step`, whatever that step decided.

    In a diffusion model the position may be masked or revealed, in any block; a sampler that remasks
    tokens may remask the forced token too. A causal model generates position p at step p.
    `Decoding.info["forced"]` is 1 if the canvas changed. In a causal model the confidence at a forced
    position is the probability of the forced token.

    Args:
        position: position in the answer, from 0 (default).
        token: token id, not the mask. Required.
        step: step after which the token is set, from 0. None (default) is step 0 in a diffusion model and
            step `position` in a causal model. A causal model allows no other step.
    """

    position: int = 0
    token: int = -1
    step: int | None = None

    def check(self, model: Model) -> None:
        if not 0 <= self.token < model.vocab_size:
            raise UsageError(
                f"ForceToken: token = {self.token} is not in the vocabulary of {model.name}",
                f"Give a token id from 0 to {model.vocab_size - 1}.",
            )
        if self.token == model.mask_id:
            raise UsageError(
                "ForceToken: the token is the mask",
                "Use Remasked(positions, step) to remask a position.",
            )
        if self.position < 0:
            raise UsageError(
                f"ForceToken: position = {self.position}", "Count the answer's positions from 0."
            )
        if self.step is not None:
            check_step(self.step, "ForceToken")
        if not model.is_diffusion and self.step not in (None, self.position):
            raise UsageError(
                f"ForceToken: {model.name} generates position {self.position} at step "
                f"{self.position}, not {self.step}",
                "Leave step out for a causal model.",
            )

    def probes(self, model: Model) -> "list[ForceToken]":
        """Return two versions with different tokens, because the first step may choose either token anyway.

        Args:
            model (Model): the model on which to try the intervention.
        """
        tokens = (i for i in range(model.vocab_size) if i not in (self.token, model.mask_id))
        first = replace(self, position=0, step=None)
        return [first, replace(first, token=next(tokens))]

    def acting(self, model: Model) -> "_Active":
        step = self.position if not model.is_diffusion else self.step or 0
        return _Active(model, self.position, self.token, step)


class _Active(ActiveOverrule):
    name = "forced"

    def __init__(self, model: Model, position: int, token: int, step: int) -> None:
        super().__init__(model, step)
        self.position, self.token = position, token

    def changed(self, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
        length = canvas.shape[1] - state.prompt_end
        if self.position >= length:
            raise UsageError(
                f"ForceToken: position = {self.position} of an answer of {length} tokens",
                "Count from 0, or generate a longer answer.",
            )
        canvas = canvas.clone()
        canvas[:, state.prompt_end + self.position] = self.token
        return canvas
