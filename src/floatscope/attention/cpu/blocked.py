"""The same statistics on any device in bounded memory: a block of queries at a time, never S×S.

With the log-sum-exp that SDPA already computed, one product per block gives the weights themselves:
exp(scale·q·k − lse), where −lse is a further number of q that meets a one of k. Everything else is a sum
over that block while it is in cache.
"""

import threading
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ...models import Direction
from ..statistics import Columns, Sums, View

_BLOCK_BYTES = 2 << 20  # of weights at a time: about a core's L2 cache
_BLOCK_BYTES_CUDA = 256 << 20
_TINY = 1e-30


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Sums:
    """Column sums by query group; on request row entropy, region sums, and the rollout's step."""
    b, h, n_query = view.query.shape[:3]
    n_key = view.key.shape[2]
    query, key = _factors(view)
    labels = view.labels
    beside = [labels.in_region] if regions else []
    beside += [] if view.state is None else [view.state.float()]
    values = None
    if beside:
        # Values × weightsᵀ, not weights × values: few columns make the second product slow.
        values = torch.cat(beside, dim=-1).mT[:, None].expand(b, h, -1, -1).flatten(0, 1)

    column = query.new_zeros(b * h, labels.n_groups, n_key)
    entropies: list[Tensor] = []
    gathered: list[Tensor] = []
    size = _block_rows(query, n_key)
    # One block's worth of memory, used again and again while it is in cache.
    space = _space(query, 2 if entropy else 1, b * h * size * n_key)
    for start in range(0, n_query, size):
        stop = min(start + size, n_query)
        rows = stop - start
        last = _reach(view, stop)
        weight, log_weight = _weights(view, query, key, start, stop, last, space)
        if log_weight is not None:
            # 0 · −inf is 0 here: hidden keys are set to 0 before the product.
            entropies.append(-log_weight.mul_(weight).sum(-1).view(b, h, rows))
        one = labels.of_group[:, None, :, start:stop].expand(b, h, -1, -1).reshape(b * h, -1, rows)
        column[:, :, :last].baddbmm_(one, weight.view(b * h, rows, last))
        if values is not None:
            by_region = torch.bmm(values[..., :last], weight.view(b * h, rows, last).mT)
            gathered.append(by_region.view(b, h, -1, rows))
    region_sum = rolled = None
    if values is not None:
        together = torch.cat(gathered, dim=-1)  # (b, h, v, q)
        if regions:
            region_sum = together[:, :, : labels.n_regions].mT
        if view.state is not None:
            rolled = together[:, :, -view.state.shape[-1] :].mean(1).mT
    return Sums(
        column_sum=column.view(b, h, labels.n_groups, n_key).transpose(1, 2),
        entropy=torch.cat(entropies, dim=-1) if entropy else None,
        region_sum=region_sum,
        rolled=rolled,
    )


def _factors(view: View) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b kv k e"]]:
    """Whose product is the logarithm of the weights, or the scaled score where no log-sum-exp is known."""
    query, key = view.query.float() * view.scale, view.key.float()
    if view.lse is None:
        return query.contiguous(), key.contiguous()
    one = key.new_ones(()).expand(*key.shape[:-1], 1)
    return torch.cat([query, -view.lse[..., None]], dim=-1), torch.cat([key, one], dim=-1)


_kept = threading.local()


def _space(like: Tensor, n: int, size: int) -> Float[Tensor, "n _"]:
    """Memory to work in. On a CPU a thread keeps it from layer to layer: fresh memory is slow at first."""
    if like.device.type != "cpu":
        return like.new_empty(n, size)
    if getattr(_kept, "space", None) is None or _kept.space.numel() < n * size:
        with torch.inference_mode(False):
            _kept.space = torch.empty(n * size)
    space: Tensor = _kept.space[: n * size].view(n, size)
    if n * size * 4 > 4 * _BLOCK_BYTES:  # one row of many keys
        _kept.space = None
    return space


def _reach(view: View, stop: int) -> int:
    """Keys that some query before row `stop` sees: those behind get nothing."""
    n_key = view.key.shape[2]
    if view.causal:
        return n_key - view.query.shape[2] + stop
    blocks = view.mask is not None and view.visible.direction.in_blocks
    if blocks and view.ruled and not view.query.is_cuda:
        return int(view.visible.last_visible[:, stop - 1].max()) + 1
    return n_key


def _weights(
    view: View,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b kv k d"],
    start: int,
    stop: int,
    last: int,
    space: Float[Tensor, "n _"],
) -> tuple[Tensor, Tensor | None]:
    """Attention weights of query rows start … stop over keys 0 … last; with room for two, their log.

    Both are (b, kv, h/kv, rows, last); the logarithm of a hidden key is 0, not −inf.
    """
    b, h, _, d = query.shape
    kv = key.shape[1]
    rows = stop - start
    part = query[:, :, start:stop].reshape(b * kv, (h // kv) * rows, d)
    keys = key[:, :, :last].reshape(b * kv, last, d).mT
    hidden = _hidden(view, start, stop, last)  # broadcasts over (b, kv, h/kv, rows, last), or None
    shape = (b, kv, h // kv, rows, last)
    room = space[:, : b * h * rows * last]
    product = room[0].view(b * kv, -1, last)
    torch.bmm(part, keys, out=product)
    log_weight = _biased(product.view(shape), view, last)
    if hidden is not None:
        log_weight.masked_fill_(hidden, -torch.inf)
    if view.lse is None:
        log_weight.sub_(log_weight.logsumexp(-1, keepdim=True))
    if len(room) == 1:
        return log_weight.exp_(), None
    weight = torch.exp(log_weight, out=room[1].view(shape))
    if hidden is not None:
        log_weight.masked_fill_(hidden, 0)
    return weight, log_weight


def _biased(score: Tensor, view: View, last: int) -> Tensor:
    if view.bias is None:
        return score
    return score.add_(view.bias[..., :last].unflatten(1, (view.key.shape[1], -1)))


def _hidden(view: View, start: int, stop: int, last: int) -> Tensor | None:
    """True where a query may not look, as (b, kv, h/kv, rows, keys) or broadcasting to it."""
    if view.mask is not None:
        part = ~view.mask[:, :, start:stop, :last]
        if part.shape[1] == 1:
            return part[:, :, None]
        return part.unflatten(1, (view.key.shape[1], -1))
    if not view.causal:
        return None
    offset = view.key.shape[2] - view.query.shape[2]
    at = torch.arange(offset + start, offset + stop, device=view.query.device)
    return torch.arange(last, device=view.query.device) > at[:, None]


def columns(view: View) -> Columns:
    """Closed form: Σ_i q_i·k_j = (Σ_i q_i)·k_j, the sum over the queries that see j.

    Whoever sees key j, every later query does too, so those sums are suffix sums; where rows see a
    window, the difference of two.
    """
    n_heads = view.query.shape[1]
    query, key, labels = view.query.float(), view.key.float(), view.labels
    norm = query.norm(dim=-1, keepdim=True)  # (b, h, q, 1)
    query_norm = norm * labels.counted
    inverse = labels.counted / norm.clamp_min(_TINY)
    key_norm = key.norm(dim=-1).repeat_interleave(n_heads // key.shape[1], dim=1)  # (b, h, k)
    over = _viewers(view)
    real = labels.real
    return Columns(
        score=_dot(over(labels.counted, query), key) * real,
        cosine=_dot(over(inverse, query), key) / key_norm.clamp_min(_TINY) * real,
        query_norm=over(query_norm, None).squeeze(-1) * real,
        key_norm=key_norm,
        viewers=(over(labels.counted, None)[:, 0, :, 0] * real[:, 0]).round().long(),
    )


def _viewers(view: View) -> Callable[[Tensor, Tensor | None], Tensor]:
    """A function of weights (b, h, q, 1) and values (b, h, q, v): the sum for each key, over those
    who see it, of weight · value (or of the weights alone), as (b, h, k or 1, v)."""
    visible = view.visible
    everything = visible.direction is Direction.BIDIRECTIONAL and visible.reach is None
    if everything or (visible.direction.in_blocks and visible.sees_all):

        def total(weight: Tensor, value: Tensor | None) -> Tensor:
            if value is None:
                return weight.sum(2, keepdim=True)
            return weight.mT.expand(*value.shape[:2], 1, -1) @ value

        return total
    last = view.visible.last_visible.contiguous()  # (b, q), never falling
    keys = torch.arange(view.visible.keys, device=last.device).expand(len(last), -1).contiguous()
    first = torch.searchsorted(last, keys)  # (b, k): the first query that sees k
    behind = None  # and the first after those
    if visible.reach is not None:
        behind = torch.searchsorted(visible.first_visible.contiguous(), keys, right=True)

    def suffix(weight: Tensor, value: Tensor | None) -> Tensor:
        # float64: a running sum of thousands of float32 terms would cost digits.
        terms = weight if value is None else weight * value
        sums = terms.double().flip(2).cumsum(2).flip(2)
        sums = torch.cat([sums, torch.zeros_like(sums[:, :, :1])], dim=2)
        sums = sums if behind is not None else sums.float()

        def at(place: Tensor) -> Tensor:
            return sums.gather(
                2, place[:, None, :, None].expand(-1, sums.shape[1], -1, sums.shape[3])
            )

        return at(first) if behind is None else (at(first) - at(behind)).float()

    return suffix


def _dot(
    query: Float[Tensor, "b h k_or_1 d"], key: Float[Tensor, "b kv k d"]
) -> Float[Tensor, "b h k"]:
    b, h, n, d = query.shape
    grouped = query.view(b, key.shape[1], -1, n, d)  # (b, kv, h/kv, k or 1, d)
    if n == 1:
        return (grouped.squeeze(3) @ key.mT).view(b, h, -1)
    return (grouped * key[:, :, None]).sum(-1).view(b, h, -1)


def _block_rows(query: Float[Tensor, "b h q d"], n_key: int) -> int:
    limit = _BLOCK_BYTES_CUDA if query.is_cuda else _BLOCK_BYTES
    return max(1, min(query.shape[2], limit // (query.shape[0] * query.shape[1] * n_key * 4)))
