"""Restrict proposals to the likeliest tokens (top-p, top-k). `draw.sample` draws from the result."""

import math

from jaxtyping import Bool, Float
from torch import Tensor


def top_p(logits: Float[Tensor, "*n v"], share: float, *, crossing: bool) -> Float[Tensor, "*n v"]:
    """Return the logits, with −∞ for all but the likeliest tokens whose p sum to at most `share`.

    The likeliest token is always kept. With `crossing`, the token that crosses `share` is kept too, as in
    Dream's code; ReMDM's code drops it.
    """
    ordered, place = logits.sort(dim=-1, descending=True)
    total = ordered.softmax(-1).cumsum(-1)
    dropped: Bool[Tensor, "*n v"] = total > share
    if crossing:
        dropped[..., 1:] = dropped[..., :-1].clone()
    dropped[..., 0] = False
    return logits.masked_fill(
        dropped.new_zeros(dropped.shape).scatter(-1, place, dropped), -math.inf
    )


def top_k(logits: Float[Tensor, "*n v"], count: int) -> Float[Tensor, "*n v"]:
    """Return the logits, with −∞ for each token less likely than the `count`-th likeliest token."""
    least = logits.topk(min(count, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)
