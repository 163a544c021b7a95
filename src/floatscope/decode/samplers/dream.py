"""Dream: the sampler of Dream's own generation code."""

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
    """As Dream generates: top-p before order and draw, and the schedule k = int(n·(1 − s/t)).

    Dream 7B (2508.15487), with its generation code's names and its README's settings. The logits are
    divided by the temperature, then cut to `top_p` and `top_k`; from that distribution a token is drawn,
    and `alg` orders the positions: "maskgit_plus" by p of the token, "topk_margin" by p₁ − p₂, "entropy"
    by Σ p ln(p + 1e-10). Of n masks, k are revealed between neighbours t and s of linspace(1, eps,
    steps + 1), all that is left at the last step; `alg_temp` > 0 draws them by softmax(order / alg_temp).
    "origin" reveals each mask with probability 1 − s/t instead. A step may reveal nothing.
    Published for one block and with n the mean over a batch: here every block runs through the schedule,
    and n is each prompt's own.
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
        """1 − s/t in float32, as published: k is cut to a whole number."""
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
