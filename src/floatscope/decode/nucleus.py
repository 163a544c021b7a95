"""Which tokens may be proposed: the likeliest ones. Nothing is drawn here, see `draw`."""

import math

from jaxtyping import Bool, Float
from torch import Tensor


def top_p(logits: Float[Tensor, "*n v"], share: float, *, crossing: bool) -> Float[Tensor, "*n v"]:
    """The likeliest tokens whose p sum to at most `share`, and always the first; others at −inf.

    `crossing`: and the one that crosses `share`, as in Dream's code; ReMDM's leaves it out.
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
    """The `count` likeliest tokens, and any as likely as the last of them; others at −inf."""
    least = logits.topk(min(count, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)
