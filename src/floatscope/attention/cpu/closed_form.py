"""Compute score, cosine and norms of each key from q and k alone, in closed form, without weights."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ...models import Direction
from ..shapes import Arrays, View

_TINY = 1e-30


def columns(view: View) -> Arrays:
    """Return the sums of score, cosine and query norm over each key's viewers, its norm and its viewer count.

    The viewers of key j are the counted queries i that see j. The sum of the scores is Σ_i q_i·k_j = (Σ_i
    q_i)·k_j. Without a window, all queries after the first viewer also see j, so Σ_i q_i is a suffix sum;
    with a window, it is the difference of two suffix sums.
    """
    query, key, labels = view.query.float(), view.key.float(), view.labels
    norm = torch.linalg.vector_norm(query, dim=-1, keepdim=True)  # (b, h, q, 1)
    key_norm = torch.linalg.vector_norm(key, dim=-1)
    if (per := query.shape[1] // key.shape[1]) > 1:
        key_norm = key_norm.repeat_interleave(per, dim=1)  # (b, h, k)
    real = labels.real
    if _all_see_all(view):
        return _sum_over_all(view, query, key, norm, key_norm)
    over = _viewers(view)
    inverse = labels.counted / norm.clamp_min(_TINY)
    return {
        "score": _dot(over(labels.counted, query), key) * real,
        "cosine": _dot(over(inverse, query), key) / key_norm.clamp_min(_TINY) * real,
        "query_norm": over(norm * labels.counted, None).squeeze(-1) * real,
        "key_norm": key_norm,
        "viewers": (over(labels.counted, None)[:, 0, :, 0] * real[:, 0]).round().long(),
    }


def _all_see_all(view: View) -> bool:
    visible = view.visible
    everything = visible.direction is Direction.BIDIRECTIONAL and visible.reach is None
    return everything or (visible.direction.in_blocks and visible.sees_all)


def _sum_over_all(
    view: View,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b kv k d"],
    norm: Float[Tensor, "b h q 1"],
    key_norm: Float[Tensor, "b h k"],
) -> Arrays:
    """Compute the arrays of `columns` if all queries see every key, with one product for q and q/‖q‖."""
    labels, (b, h, n, d) = view.labels, query.shape
    mean = (norm.mT @ labels.counted).squeeze(-1)  # (b, h, 1)
    weight = query.new_empty(b, h, 2, n)
    weight[:, :, 0] = labels.counted[..., 0]
    torch.div(labels.counted[..., 0], norm[..., 0].clamp_min_(_TINY), out=weight[:, :, 1])
    total = (weight @ query).view(b, key.shape[1], -1, d)  # (b, kv, h/kv · 2, d)
    products = (total @ key.mT).view(b, h, 2, -1)
    # reading `every_key` on another device would wait
    if not (products.is_cpu and labels.every_key):
        products *= labels.real[:, :, None]
    return {
        "score": products[:, :, 0],
        "cosine": products[:, :, 1] / key_norm.clamp_min(_TINY),
        "query_norm": mean * labels.real,
        "key_norm": key_norm,
        "viewers": labels.counting,
    }


def _viewers(view: View) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function that sums weight · value, (b, h, q, v), over the queries that see each key."""
    visible = view.visible
    last = visible.last_visible.contiguous()  # (b, q), non-decreasing
    keys = torch.arange(visible.keys, device=last.device).expand(len(last), -1).contiguous()
    first = torch.searchsorted(last, keys)  # (b, k): the first query that sees k
    behind = None  # the first query after those
    if visible.reach is not None:
        behind = torch.searchsorted(visible.first_visible.contiguous(), keys, right=True)

    def suffix(weight: Tensor, value: Tensor | None) -> Tensor:
        # float64: a running sum of thousands of float32 terms would lose digits.
        terms = weight if value is None else weight * value
        sums = terms.double().flip(2).cumsum(2).flip(2)
        sums = torch.cat([sums, torch.zeros_like(sums[:, :, :1])], dim=2)
        sums = sums if behind is not None else sums.float()

        def sums_from(place: Tensor) -> Tensor:
            index = place[:, None, :, None].expand(-1, sums.shape[1], -1, sums.shape[3])
            return sums.gather(2, index)

        if behind is None:
            return sums_from(first)
        return (sums_from(first) - sums_from(behind)).float()

    return suffix


def _dot(query: Float[Tensor, "b h k d"], key: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b h k"]:
    b, h, n, d = query.shape
    grouped = query.view(b, key.shape[1], -1, n, d)  # (b, kv, h/kv, k, d)
    return (grouped * key[:, :, None]).sum(-1).view(b, h, -1)
