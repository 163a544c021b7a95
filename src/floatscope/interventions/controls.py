"""Choose control keys to hide instead of the picked keys, matched in number, position, or attention.

All functions are pure functions of tensors. The draws depend only on the prompt and the seed, not on the
step or the layer. If a key is picked in two layers, the control replaces it by the same key in both
layers, so the control's keys vary over layers only as much as the anchors do.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

KINDS = ("random", "matched", "mass")


def pick_controls(
    kind: str,
    picked: Bool[Tensor, "b h k"],
    pool: Bool[Tensor, "b #h k"],
    noise: Float[Tensor, "b k"],
    total: Float[Tensor, "b h k"] | None = None,
) -> Bool[Tensor, "b h k"]:
    """Choose, head by head, the control's keys from the keys in the pool that are not picked.

    `noise` contains the prompt's random numbers, one per key. `total` is the attention that each key
    receives; it is required for the control "mass".
    """
    free = pool & ~picked
    if kind == "mass":
        assert total is not None
        return _as_heavy(picked, free, total)
    size = picked.shape[-1]
    places = torch.arange(size, device=picked.device)
    # A random cyclic order of all keys, one per prompt; each picked key is replaced by the next free key.
    order = noise.argsort(-1).argsort(-1)[:, None].expand_as(picked)
    controls = torch.zeros_like(picked)
    for n in range(int(picked.sum(-1).max())):
        is_nth = picked & (picked.cumsum(-1) == n + 1)
        position = is_nth.float().argmax(-1, keepdim=True)  # (b, h, 1)
        if kind == "random":
            distance = ((order - order.gather(-1, position)) % size).float()
        else:  # ties between left and right are broken at random
            distance = (places - position).abs() + noise[:, None] / 2
        nearest = distance.masked_fill(~free, torch.inf).argmin(-1, keepdim=True)
        control = torch.zeros_like(picked).scatter_(-1, nearest, True) & is_nth.any(
            -1, keepdim=True
        )
        control &= free
        controls, free = controls | control, free & ~control
    return controls


def _as_heavy(
    picked: Bool[Tensor, "b h k"], free: Bool[Tensor, "b h k"], total: Float[Tensor, "b h k"]
) -> Bool[Tensor, "b h k"]:
    """Choose free keys whose attention sums to that of the picked keys, the strongest first.

    A free key is chosen if its attention does not exceed the remaining sum. At the end one key that
    exceeds the remaining sum is also chosen if the total is then nearer to the sum, so the error is at
    most half of the attention of the weakest key that was not chosen before. If the free keys have less
    attention than the picked keys, all free keys are chosen.
    """
    weight = total.double().cpu()
    remaining = (weight * picked.cpu()).sum(-1)  # (b, h): attention still to be hidden
    weight, key = weight.masked_fill(~free.cpu(), 0).sort(dim=-1, descending=True, stable=True)
    chosen = torch.zeros_like(weight, dtype=torch.bool)
    for place in range(
        weight.shape[-1]
    ):  # sequential, because what fits depends on earlier choices
        fits = (weight[..., place] <= remaining) & (weight[..., place] > 0)
        chosen[..., place] = fits
        remaining = remaining - torch.where(fits, weight[..., place], 0.0)
    over = weight.masked_fill(chosen | (weight == 0), torch.inf)
    least = over.argmin(-1, keepdim=True)
    nearer = over.gather(-1, least) < 2 * remaining[..., None]
    chosen = chosen.scatter(-1, least, chosen.gather(-1, least) | nearer)
    return torch.zeros_like(chosen).scatter_(-1, key, chosen).to(picked.device)


def pick_equal_mass(
    picked: Bool[Tensor, "b h k"],
    free: Bool[Tensor, "b h k"],
    weight: Float[Tensor, "b h k"],
    noise: Float[Tensor, "b k"],
) -> Bool[Tensor, "b h k"]:
    """Choose free keys in random order until they have as much attention as the picked keys.

    If all free keys together have less attention than the picked keys, all free keys are chosen.
    """
    order = noise.argsort(-1)[:, None].expand_as(picked)
    drawn = (weight * free).gather(-1, order)
    needed = drawn.cumsum(-1) - drawn < (weight * picked).sum(-1, keepdim=True)
    return torch.zeros_like(picked).scatter_(-1, order, needed) & free
