"""Massive activations: how far a position's largest channel stands out of its others, and which it is."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def massive(x: Float[Tensor, "b n d"]) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"]]:
    """max |x| over median |x| of each position's channels, and the channel; ∞ where the median is 0."""
    ratios, channels = [], []
    middle = x.shape[-1] // 2
    for one in x:  # a prompt at a time: sorting takes three times the memory
        size = one.to(torch.promote_types(x.dtype, torch.float32)).abs()
        best = size.max(-1)
        ordered = size.sort(-1).values
        low = ordered[:, middle] if x.shape[-1] % 2 else ordered[:, middle - 1]
        ratios.append(best.values / ((low + ordered[:, middle]) / 2))
        channels.append(best.indices)
    return torch.stack(ratios).float(), torch.stack(channels)
