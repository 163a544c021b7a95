"""Dream: the sampler of Dream's generation code."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...errors import UsageError
from ..nucleus import top_k, top_p
from .base import Guess, Sampler, by_chance

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


@dataclass(frozen=True)
class Dream(Sampler):
    """Decode as Dream does: draw tokens from the top-p, and reveal masks in order of `alg` on its schedule.

    The method is that of Dream 7B (2508.15487), with the names of its generation code and the settings of
    its README. The logits are divided by the temperature, then cut to `top_p` and `top_k`; a token is
    drawn from that distribution. A step reveals int(n·(1 − s/t)) of a prompt's n masks, which may be 0
    masks; t and s are the times of this step and the next in linspace(1, eps, steps + 1). The last step
    reveals all masks. The method was published for one block, with n averaged over a batch; here every
    block runs through the schedule, and each prompt has its own n.

    Args:
        temperature: divides the logits, default 0.2; 0 takes the arg-max.
        alg: order in which positions are revealed: "entropy" (default) by Σ p ln(p + 1e-10),
            "maskgit_plus" by p of the proposed token, "topk_margin" by the two largest p, p₁ − p₂.
            "origin" has no order: it reveals each mask with probability 1 − s/t.
        alg_temp: above 0, positions are drawn by softmax(order / alg_temp) instead of taken by rank.
            Default 0.
        top_p: total probability of the tokens that may be proposed, above 0 to 1, default 0.95; 1 is off.
        top_k: number of likeliest tokens that may be proposed; None (default) is off.
        eps: last time of the schedule, between 0 and 1, default 0.001.
    """

    temperature: float = 0.2
    alg: str = "entropy"
    alg_temp: float = 0.0
    top_p: float = 0.95
    top_k: int | None = None
    eps: float = 1e-3

    def check_fields(self) -> None:
        super().check_fields()
        if self.alg not in ALGORITHMS:
            raise UsageError(f"Dream: alg = {self.alg!r}", f"Use one of {', '.join(ALGORITHMS)}.")
        if self.alg_temp < 0 or not math.isfinite(self.alg_temp):
            raise UsageError(f"Dream: alg_temp = {self.alg_temp}", "Use 0 or more.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"Dream: top_p = {self.top_p}", "Use a share above 0; 1 is off.")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"Dream: top_k = {self.top_k}", "Use 1 or more; None is off.")
        if not 0 < self.eps < 1:
            raise UsageError(f"Dream: eps = {self.eps}", "Use a number between 0 and 1.")

    def offered(self, logits: Float[Tensor, "b w v"]) -> Float[Tensor, "b w v"]:
        warm = logits / self.temperature if self.temperature else logits
        if self.top_p < 1:
            warm = top_p(warm, self.top_p, crossing=True)
        if self.top_k is not None:
            warm = top_k(warm, self.top_k)
        return logits.masked_fill(warm == -math.inf, -math.inf)

    def _chance(self, step: int, steps: int) -> float:
        """Return the share of masks to reveal in this step, 1 − s/t for times t (now) and s (next).

        The share is computed in float32 as in the published code, because the truncated number of masks
        depends on its last bits.
        """
        if step == steps - 1:
            return 1.0
        times = torch.linspace(1, self.eps, steps + 1)
        return float(1 - times[step + 1] / times[step])

    def quota(
        self, masked: Int[Tensor, " b"], width: int, step: int, steps: int
    ) -> Int[Tensor, " b"]:
        return (masked.float() * self._chance(step, steps)).long()

    def score(self, guess: Guess) -> Float[Tensor, "b w"]:
        warm = guess.logits / self.temperature if self.temperature else guess.logits
        p = warm.softmax(-1)
        if self.alg == "maskgit_plus":
            order = p.gather(-1, guess.token[..., None]).squeeze(-1)
        elif self.alg == "topk_margin":
            first, second = p.topk(2, dim=-1).values.unbind(-1)
            order = first - second
        else:
            order = (p * (p + 1e-10).log()).sum(-1)
        if not self.alg_temp:
            return order
        # The k best after Gumbel noise are k draws without replacement by softmax.
        gumbel = -(-guess.noise.double().clamp_min(1e-30).log()).log()
        return order / self.alg_temp + gumbel

    def select(self, guess: Guess, quota: Int[Tensor, " b"]) -> Bool[Tensor, "b w"]:
        if self.alg == "origin":
            return by_chance(guess, self._chance(guess.step, guess.steps))
        return super().select(guess, quota)
