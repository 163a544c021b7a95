"""Controls: other keys in place of the chosen ones, alike in number, in place, or in attention held.

Pure functions of tensors. What is drawn depends on the prompt and the seed alone, never on step or
layer: where two layers chose the same key, a control replaces it by the same one in both, so that a
control stays where its anchors stay.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

KINDS = ("random", "matched", "mass")


def others(
    kind: str,
    picked: Bool[Tensor, "b h k"],
    pool: Bool[Tensor, "b #h k"],
    noise: Float[Tensor, "b k"],
    total: Float[Tensor, "b h k"] | None = None,
) -> Bool[Tensor, "b h k"]:
    """Keys of the pool that were not picked, head by head. `noise` is the prompt's own, key by key;
    `total` is what each key receives, which "mass" goes by."""
    free = pool & ~picked
    if kind == "mass":
        assert total is not None
        return _as_heavy(picked, free, total)
    size = picked.shape[-1]
    places = torch.arange(size, device=picked.device)
    # A circle of all keys in random order, one per prompt; each picked key gives way to the next free.
    order = noise.argsort(-1).argsort(-1)[:, None].expand_as(picked)
    taken = torch.zeros_like(picked)
    for n in range(int(picked.sum(-1).max())):
        is_nth = picked & (picked.cumsum(-1) == n + 1)
        at = is_nth.float().argmax(-1, keepdim=True)  # (b, h, 1)
        if kind == "random":
            distance = ((order - order.gather(-1, at)) % size).float()
        else:  # left or right of it at the same distance: by chance
            distance = (places - at).abs() + noise[:, None] / 2
        nearest = distance.masked_fill(~free, torch.inf).argmin(-1, keepdim=True)
        one = torch.zeros_like(picked).scatter_(-1, nearest, True) & is_nth.any(-1, keepdim=True)
        one &= free
        taken, free = taken | one, free & ~one
    return taken


def _as_heavy(
    picked: Bool[Tensor, "b h k"], free: Bool[Tensor, "b h k"], total: Float[Tensor, "b h k"]
) -> Bool[Tensor, "b h k"]:
    """The strongest first, each that still fits; at last one that does not, if that comes nearer.

    So it takes few columns, and misses by half of one at most: of the weakest that did not fit. Where all
    that is free holds less than what was picked, all of it is taken.
    """
    weight = total.double().cpu()
    rest = (weight * picked.cpu()).sum(-1)  # (b, h): still to be hidden
    weight, key = weight.masked_fill(~free.cpu(), 0).sort(dim=-1, descending=True, stable=True)
    taken = torch.zeros_like(weight, dtype=torch.bool)
    for place in range(
        weight.shape[-1]
    ):  # (one after another: what fits depends on what was taken)
        fits = (weight[..., place] <= rest) & (weight[..., place] > 0)
        taken[..., place] = fits
        rest = rest - torch.where(fits, weight[..., place], 0.0)
    over = weight.masked_fill(taken | (weight == 0), torch.inf)
    least = over.argmin(-1, keepdim=True)
    nearer = over.gather(-1, least) < 2 * rest[..., None]
    taken = taken.scatter(-1, least, taken.gather(-1, least) | nearer)
    return torch.zeros_like(taken).scatter_(-1, key, taken).to(picked.device)


def as_heavy_at_random(
    picked: Bool[Tensor, "b h k"],
    free: Bool[Tensor, "b h k"],
    weight: Float[Tensor, "b h k"],
    noise: Float[Tensor, "b k"],
) -> Bool[Tensor, "b h k"]:
    """Free keys in random order, until they hold as much as the picked ones; all, if they hold less."""
    order = noise.argsort(-1)[:, None].expand_as(picked)
    drawn = (weight * free).gather(-1, order)
    needed = drawn.cumsum(-1) - drawn < (weight * picked).sum(-1, keepdim=True)
    return torch.zeros_like(picked).scatter_(-1, order, needed) & free
