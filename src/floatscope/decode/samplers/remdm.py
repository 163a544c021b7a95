"""ReMDM: a sampler that reveals and remasks positions at random, with the loop of ReMDM's paper."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import UsageError
from ..nucleus import top_p
from .base import Guess, Sampler, by_chance

_END = 1e-5  # the published time runs from 1 to this value, not to 0


@dataclass(frozen=True)
class ReMDM(Sampler):
    """Reveal a share `alpha_on` of masks at random, then remask and reveal in a loop, then reveal all masks.

    The method is ReMDM with a loop (2503.00307), as in its code for the linear schedule and with its
    settings. Time runs from 1 to 0 over the steps of each block; t is the time of a step and s that of
    the next. While t > `t_on`, every mask is revealed with probability (α_s − α_t) / (1 − α_t), where α
    grows evenly from 0 to `alpha_on`. From then on, while t > `t_off`, every token is remasked with
    probability σ = `eta`, and every mask is revealed with probability σ·α_on / (1 − α_on), so that a
    share α_on is revealed on average. After that, every mask is revealed with probability (t − s) / t.

    The published code ends at t = 1e-5 and reveals the remaining masks by arg-max with one more forward;
    here the last step reveals all masks. With fewer than 1 / t_off steps there is no phase after the loop.
    Probabilities above 1 are clipped to 1. There may be more steps than tokens. `Remask` is a
    deterministic variant that reveals by confidence.

    Args:
        temperature: temperature of the draws, default 1; 0 takes the arg-max.
        eta: probability σ of remasking a token in the loop, 0 to min(1, (1 − alpha_on) / alpha_on),
            default 0.02.
        alpha_on: share of the block that is revealed before and during the loop, between 0 and 1, default
            0.9.
        t_on: time at which the loop begins, default 0.55.
        t_off: time at which the loop ends, above 0 to `t_on`, default 0.05.
        top_p: largest total probability of the tokens that may be proposed, above 0 to 1, default 0.9; 1
            is off.
    """

    temperature: float = 1.0
    eta: float = 0.02
    alpha_on: float = 0.9
    t_on: float = 0.55
    t_off: float = 0.05
    top_p: float = 0.9
    takes_back: ClassVar[bool] = True

    def check_fields(self) -> None:
        super().check_fields()
        if not 0 < self.alpha_on < 1:
            raise UsageError(f"ReMDM: alpha_on = {self.alpha_on}", "Use a share between 0 and 1.")
        max_eta = min(1.0, (1 - self.alpha_on) / self.alpha_on)
        if not 0 <= self.eta <= max_eta:
            raise UsageError(
                f"ReMDM: eta = {self.eta} with alpha_on = {self.alpha_on}",
                f"Use 0 to {max_eta:.4g}: a larger share cannot be revealed again.",
            )
        if not 0 < self.t_off <= self.t_on < 1:
            raise UsageError(
                f"ReMDM: t_on = {self.t_on}, t_off = {self.t_off}", "Use 0 < t_off ≤ t_on < 1."
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"ReMDM: top_p = {self.top_p}", "Use a share above 0; 1 is off.")

    def chances(self, step: int, steps: int) -> tuple[float, float]:
        """Return a step's probabilities of revealing a mask and of remasking a token.

        Args:
            step: step within the block, from 0.
            steps: number of steps of the block.
        """
        t, s = (1 - i * (1 - _END) / steps for i in (step, step + 1))
        if t > self.t_on:
            a_t, a_s = ((1 - x) * self.alpha_on / (1 - self.t_on) for x in (t, s))
            return min(1.0, (a_s - a_t) / (1 - a_t)), 0.0
        if t > self.t_off and step < steps - 1:
            return self.eta * self.alpha_on / (1 - self.alpha_on), self.eta
        return (t - s) / t, 0.0

    def offered(self, logits: Float[Tensor, "b w v"]) -> Float[Tensor, "b w v"]:
        return logits if self.top_p == 1 else top_p(logits, self.top_p, crossing=False)

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        return by_chance(guess, self.chances(guess.step, guess.steps)[0])

    def revise(
        self, guess: Guess, revealed_as: Float[Tensor, "b w"], step: int, steps: int
    ) -> Bool[Tensor, "b w"]:
        committed = guess.in_block & ~guess.masked
        return committed & (guess.noise < self.chances(step, steps)[1])
