"""Whole attention rows of the few positions that a step revealed.

Which positions those are is known only after the forward, so the queries of the positions being
decided and the keys they looked at are held until then: O(S) memory a layer, and a handful of rows
computed instead of all that might have been chosen.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .shapes import View


@dataclass(frozen=True, eq=False)
class Held:
    """One layer's queries from row `start` on, and what they could see."""

    query: Float[Tensor, "b h w d"]
    key: Float[Tensor, "b kv k d"]
    scale: float
    mask: Bool[Tensor, "b _ w k"] | None  # None: everything
    bias: Float[Tensor, "b h 1 k"] | None = None


def hold(view: View, start: int, stop: int) -> Held:
    """Copies the few queries, so that the rest of the tensor can go."""
    mask = view.mask
    if mask is not None:
        mask = mask[:, :, start:stop].expand(len(view.query), -1, -1, -1)
    elif view.causal:
        keys = torch.arange(view.visible.keys, device=view.query.device)
        mask = keys <= view.visible.last_visible[:, None, start:stop, None]
    return Held(view.query[:, :, start:stop].clone(), view.key, view.scale, mask, view.bias)


def scores(held: Held, b: int, which: Int[Tensor, " n"]) -> Float[Tensor, "h n k"]:
    """Scaled scores of some of the held rows of one prompt; −inf where a row may not look."""
    query = held.query[b, :, which].float() * held.scale  # (h, n, d)
    key = held.key[b].float()  # (kv, k, d)
    n_heads, n, d = query.shape
    score = (query.reshape(len(key), -1, d) @ key.mT).view(n_heads, n, -1)
    if held.bias is not None:
        score = score + held.bias[b]
    if held.mask is not None:
        score = score.masked_fill(~held.mask[b][:, which], -torch.inf)
    return score


def strongest(
    weight: Float[Tensor, "*h n k"], top: int
) -> tuple[Int[Tensor, "*h n t"], Float[Tensor, "*h n t"]]:
    """The keys with most weight; where fewer than `top` weigh anything, weight 0 at key −1."""
    best = weight.topk(min(top, weight.shape[-1]), dim=-1)
    missing = top - best.values.shape[-1]
    there = best.indices.masked_fill(best.values == 0, -1)
    key = torch.nn.functional.pad(there, (0, missing), value=-1)
    return key, torch.nn.functional.pad(best.values, (0, missing))
