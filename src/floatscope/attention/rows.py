"""Whole attention rows of the few positions that a step revealed.

Which positions those are is known only after the forward, so the queries of the positions being
decided and the keys they looked at are held until then: O(S) memory a layer, and a handful of rows
computed instead of all that might have been chosen.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .reference import expand
from .statistics import View


@dataclass(frozen=True, eq=False)
class Held:
    """One layer's queries from row `start` on, and what they could see."""

    query: Float[Tensor, "b h w d"]
    key: Float[Tensor, "b kv k d"]
    scale: float
    mask: Bool[Tensor, "b _ w k"]
    bias: Float[Tensor, "b h 1 k"] | None = None


def hold(view: View, start: int, stop: int) -> Held:
    """Copies the few queries, so that the rest of the tensor can go."""
    mask = view.mask
    if mask is None:
        keys = torch.arange(view.visible.keys, device=view.query.device)
        last = view.visible.last_visible[:, None, start:stop, None]
        part = keys <= last
    else:
        part = mask[:, :, start:stop].expand(len(view.query), -1, -1, -1)
    return Held(view.query[:, :, start:stop].clone(), view.key, view.scale, part, view.bias)


def row(held: Held, b: int, which: Int[Tensor, " n"]) -> Float[Tensor, "h n k"]:
    """The attention of some of the held rows of one prompt."""
    query = held.query[b, :, which].float()  # (h, n, d)
    score = query @ expand(held.key[b : b + 1].float(), len(query))[0].mT * held.scale
    if held.bias is not None:
        score = score + held.bias[b]
    return score.masked_fill(~held.mask[b][:, which], -torch.inf).softmax(-1)


def strongest(
    weight: Float[Tensor, "*h n k"], top: int
) -> tuple[Int[Tensor, "*h n t"], Float[Tensor, "*h n t"]]:
    """The keys with most weight; where fewer than `top` weigh anything, weight 0 at key −1."""
    best = weight.topk(min(top, weight.shape[-1]), dim=-1)
    missing = top - best.values.shape[-1]
    there = best.indices.masked_fill(best.values == 0, -1)
    key = torch.nn.functional.pad(there, (0, missing), value=-1)
    return key, torch.nn.functional.pad(best.values, (0, missing))
