"""Experts: which ones a router chose for each position of a forward, and with what weight.

Routers of transformers give their logits, the weights of the chosen experts and the choice, in an order of
their own; here the strongest comes first. What the experts then compute is not looked at.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor


def chosen(output: Any, batch: int) -> tuple[Int[Tensor, "b c q"], Float[Tensor, "b c q"]]:
    """From a router's output over all tokens of a batch: experts and weights, by position."""
    _, weight, expert = output  # (b·q, c) each
    order = weight.argsort(dim=-1, descending=True, stable=True)
    expert, weight = (x.gather(-1, order).unflatten(0, (batch, -1)) for x in (expert, weight))
    return expert.mT, weight.mT.float()
