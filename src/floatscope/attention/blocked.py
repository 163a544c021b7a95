"""The same statistics on any device in bounded memory: a block of queries at a time, never S×S.

With the log-sum-exp that SDPA already computed, one product per block gives the weights themselves:
exp(scale·q·k − lse). Everything else is a sum over that block while it is in cache.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models import Direction
from .statistics import Columns, Sums, View

_BLOCK_BYTES = 2 << 20  # of weights at a time: about a core's L2 cache
_BLOCK_BYTES_CUDA = 256 << 20


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Sums:
    """Column sums by query group; on request row entropy, region sums, and the rollout's step."""
    b, h, n_query = view.query.shape[:3]
    kv, n_key = view.key.shape[1:3]
    query, key = view.query.float(), view.key.float()
    in_region = one_hot(view.region, view.n_regions)  # (b, k, r)
    beside = [in_region] if regions else []
    beside += [] if view.state is None else [view.state.float()]
    values = torch.cat(beside, dim=-1) if beside else None  # (b, k, v)
    of_group = one_hot(view.group, view.n_groups).mT.contiguous()  # (b, g, q)

    column = query.new_zeros(b * h, view.n_groups, n_key)
    entropies: list[Tensor] = []
    gathered: list[Tensor] = []
    size = block_rows(query, n_key)
    for start in range(0, n_query, size):
        stop = min(start + size, n_query)
        rows = stop - start
        # Causal: keys after the block's last query get nothing.
        last = n_key - n_query + stop if view.causal else n_key
        weight, log_weight = _weights(view, query, key, start, stop, last, entropy)
        if log_weight is not None:
            # 0 · −inf is 0 here: hidden keys are set to 0 before the product.
            entropies.append(-log_weight.mul_(weight).sum(-1).view(b, h, rows))
        one = of_group[:, None, :, start:stop].expand(b, h, -1, -1).reshape(b * h, -1, rows)
        column[:, :, :last].baddbmm_(one, weight.view(b * h, rows, last))
        if values is not None:
            flat = weight.view(b, h * rows, last)
            gathered.append((flat @ values[:, :last]).view(b, h, rows, -1))
    region_sum = rolled = None
    if values is not None:
        together = torch.cat(gathered, dim=2)
        if regions:
            region_sum = together[..., : view.n_regions]
        if view.state is not None:
            rolled = together[..., -view.state.shape[-1] :].mean(1)
    return Sums(
        column_sum=column.view(b, h, view.n_groups, n_key).transpose(1, 2),
        entropy=torch.cat(entropies, dim=-1) if entropy else None,
        region_sum=region_sum,
        rolled=rolled,
    )


def rows(view: View, start: int, stop: int) -> Float[Tensor, "b h w k"]:
    """The attention of a few query rows, whole."""
    query, key = view.query.float(), view.key.float()
    weight, _ = _weights(view, query, key, start, stop, key.shape[2], keep_log=False)
    return weight.flatten(1, 2)  # (b, kv, h/kv, w, k) → (b, h, w, k)


def _weights(
    view: View,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b kv k d"],
    start: int,
    stop: int,
    last: int,
    keep_log: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention weights of query rows start … stop over keys 0 … last, and their logarithm if asked.

    Both are (b, kv, h/kv, rows, last); the logarithm of a hidden key is 0, not −inf.
    """
    b, h, _, d = query.shape
    kv = key.shape[1]
    rows = stop - start
    part = query[:, :, start:stop].reshape(b * kv, (h // kv) * rows, d)
    keys = key[:, :, :last].reshape(b * kv, last, d).mT
    hidden = _hidden(view, start, stop, last)  # broadcasts over (b, kv, h/kv, rows, last), or None
    shape = (b, kv, h // kv, rows, last)
    if view.lse is not None:
        lse = view.lse[:, :, start:stop].reshape(b * kv, -1, 1)
        log_weight = torch.baddbmm(lse, part, keys, beta=-1, alpha=view.scale).view(shape)
        if hidden is not None:
            log_weight.masked_fill_(hidden, -torch.inf)
    else:
        score = torch.bmm(part, keys).mul_(view.scale).view(shape)
        if hidden is not None:
            score.masked_fill_(hidden, -torch.inf)
        log_weight = score.sub_(score.logsumexp(-1, keepdim=True))
    if not keep_log:
        return log_weight.exp_(), None
    weight = log_weight.exp()
    if hidden is not None:
        log_weight.masked_fill_(hidden, 0)
    return weight, log_weight


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

    Whoever sees key j, every later query does too, so those sums are suffix sums.
    """
    b, h = view.query.shape[:2]
    key = view.key.float()
    counts = (view.group >= 0)[:, None, :, None]
    query = torch.where(counts, view.query.float(), 0.0)
    query_norm = query.norm(dim=-1, keepdim=True)
    unit = query / query_norm.clamp_min(1e-30)
    stacked = torch.cat([query, unit, query_norm, counts.expand_as(query_norm)], dim=-1)
    summed = _sum_over_viewers(stacked, view)  # (b, h, k or 1, 2d + 2)
    d = key.shape[-1]
    total, direction, norms, seen = summed.split([d, d, 1, 1], dim=-1)
    key_norm = key.norm(dim=-1)
    unit_key = key / key_norm[..., None].clamp_min(1e-30)
    real = (view.region >= 0)[:, None]
    n_key = key.shape[2]
    return Columns(
        score=_dot(total, key).masked_fill(~real, 0),
        cosine=_dot(direction, unit_key).masked_fill(~real, 0),
        query_norm=norms.squeeze(-1).expand(b, h, n_key).masked_fill(~real, 0),
        key_norm=key_norm.repeat_interleave(h // key.shape[1], dim=1),
        seen=seen[:, 0, :, 0].round().long().expand(b, n_key).masked_fill(~real[:, 0], 0),
    )


def _sum_over_viewers(
    values: Float[Tensor, "b h q v"], view: View
) -> Float[Tensor, "b h k_or_1 v"]:
    """For each key, Σ of `values` over the queries that see it; one row where all see all."""
    last = view.visible.last_visible  # (b, q), never falling
    if view.visible.direction is Direction.BIDIRECTIONAL:
        return values.sum(2, keepdim=True)
    # float64: a running sum of thousands of float32 terms would cost digits.
    suffix = values.double().flip(2).cumsum(2).flip(2)
    suffix = torch.cat([suffix, torch.zeros_like(suffix[:, :, :1])], dim=2).float()
    keys = torch.arange(view.visible.keys, device=last.device).expand(len(last), -1).contiguous()
    first = torch.searchsorted(last.contiguous(), keys)  # (b, k): the first query that sees k
    index = first[:, None, :, None].expand(-1, suffix.shape[1], -1, suffix.shape[3])
    return suffix.gather(2, index)


def _dot(
    query: Float[Tensor, "b h k_or_1 d"], key: Float[Tensor, "b kv k d"]
) -> Float[Tensor, "b h k"]:
    b, h, n, d = query.shape
    grouped = query.view(b, key.shape[1], -1, n, d)
    return (grouped * key[:, :, None]).sum(-1).view(b, h, -1)


def one_hot(index: Int[Tensor, "b n"], size: int) -> Float[Tensor, "b n s"]:
    """Rows of −1 are all zero."""
    return (index[..., None] == torch.arange(size, device=index.device)).float()


def block_rows(query: Float[Tensor, "b h q d"], n_key: int) -> int:
    limit = _BLOCK_BYTES_CUDA if query.is_cuda else _BLOCK_BYTES
    return max(1, min(query.shape[2], limit // (query.shape[0] * query.shape[1] * n_key * 4)))
