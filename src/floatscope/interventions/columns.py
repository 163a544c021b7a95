"""Columns: choosing keys, drawing controls of equal size, and hiding keys from a call.

Pure functions of tensors. A choice is (b, h or 1, k): True = hide this key from every query of that
head. No row is ever left without a key: one that would be keeps what it saw.
"""

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..attention import Labels, View, backend
from ..models import Visibility, seam
from ..stats.anchors import Rule

# Labels belong to one forward, as does what the kernels derive from them: all its layers share them.
_labels: "WeakKeyDictionary[Visibility, Labels]" = WeakKeyDictionary()


def received(
    call: seam.Call, visible: Visibility
) -> tuple[Float[Tensor, "b h k"], Float[Tensor, "b 1 k"]]:
    """Column sums of the attention about to be computed, and how many rows see each key."""
    if visible not in _labels:
        real = visible.query_positions >= visible.padding[:, None]  # (b, q)
        _labels[visible] = Labels(real.long() - 1, 1, visible.key_is_real.long() - 1, 1)
    view = View.of(call, visible, _labels[visible])
    view = backend.with_lse(view, lambda: seam.stock(call))
    sums = backend.sums(view, entropy=False, regions=False)
    return sums.column_sum[:, 0], viewers(visible)[:, None]


Sums = tuple[Tensor, Tensor]  # column sums (b, h, k), and the rows that see each key (b, 1, k)


def widened(sums: Sums, n_key: int) -> Sums:
    """The same with keys that were not there yet."""
    new = n_key - sums[0].shape[-1]
    return torch.nn.functional.pad(sums[0], (0, new)), torch.nn.functional.pad(sums[1], (0, new))


def added(before: Sums, now: Sums) -> Sums:
    """With a KV cache: what earlier rows gave and what the new ones give."""
    total, count = widened(before, now[0].shape[-1])
    return total + now[0], count + now[1]


def viewers(visible: Visibility) -> Float[Tensor, "b k"]:
    """How many of this forward's rows see each key; whoever sees a key, every later row does too."""
    last = visible.last_visible.contiguous()  # (b, q), never falling
    keys = torch.arange(visible.keys, device=last.device).expand(len(last), -1).contiguous()
    first = torch.searchsorted(last, keys)
    first_real = (visible.padding - (visible.keys - visible.queries)).clamp(min=0)[:, None]
    count = (visible.queries - torch.maximum(first, first_real)).clamp(min=0)
    return count.float() * visible.key_is_real


def top(means: Float[Tensor, "b h k"], rule: Rule | None, k: int) -> Bool[Tensor, "b h k"]:
    """The k keys with most received attention, of those that pass the rule; NaN is not there."""
    there = ~means.isnan() if rule is None else rule.passes(means) & ~means.isnan()
    best = means.masked_fill(~there, -torch.inf).topk(k, dim=-1).indices
    return torch.zeros_like(there).scatter_(-1, best, True) & there


def control(
    kind: str,
    picked: Bool[Tensor, "b h k"],
    there: Bool[Tensor, "b #h k"],
    streams: Sequence[torch.Generator],
) -> Bool[Tensor, "b h k"]:
    """As many other keys, head by head: at random, or each the nearest free one to a picked key."""
    free = there & ~picked
    noise = torch.zeros(picked.shape, device=picked.device)
    for b, generator in enumerate(streams):
        at = there[b].any(0)  # padding draws nothing: a prompt draws the same in any batch
        drawn = torch.rand(picked.shape[1], int(at.sum()), generator=generator)
        noise[b, :, at] = drawn.to(picked.device)
    if kind == "random":
        order = noise.masked_fill(~free, 2.0).argsort(-1).argsort(-1)
        return (order < picked.sum(-1, keepdim=True)) & free
    places = torch.arange(picked.shape[-1], device=picked.device)
    taken = torch.zeros_like(picked)
    for n in range(int(picked.sum(-1).max())):
        is_nth = picked & (picked.cumsum(-1) == n + 1)
        at = is_nth.float().argmax(-1, keepdim=True)  # (b, h, 1)
        # Left or right of it at the same distance: by chance.
        distance = (places - at).abs() + noise / 2
        nearest = distance.masked_fill(~free, torch.inf).argmin(-1, keepdim=True)
        one = torch.zeros_like(picked).scatter_(-1, nearest, True) & is_nth.any(-1, keepdim=True)
        one &= free
        taken, free = taken | one, free & ~one
    return taken


def hide(
    call: seam.Call,
    columns: Bool[Tensor, "b #h k"],
    rows: Bool[Tensor, "b q"] | None = None,
) -> seam.Call:
    """The call without some keys, for all rows or some; without any column it is the call itself."""
    if not bool(columns.any()):
        return call
    n_rows = call.query.shape[2]
    plain = call.mask is None and not call.causal and rows is None
    if plain and not bool(columns.all(-1).any()):
        # All rows see the same keys: one line of mask for each head, stretched over them.
        return replace(call, mask=~columns[:, :, None].expand(-1, -1, n_rows, -1))
    before = seam.allowed(call)
    hidden = columns[:, :, None] if rows is None else columns[:, :, None] & rows[:, None, :, None]
    after = before & ~hidden
    blind = ~after.any(-1, keepdim=True)
    return replace(call, mask=torch.where(blind, before, after), causal=False)
