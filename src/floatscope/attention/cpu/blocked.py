"""The same statistics on any device in bounded memory: a tile of rows and heads at a time, never S×S.

With the log-sum-exp that SDPA already computed, one product per tile gives the weights themselves, and
everything else is a sum over that tile while it is in cache. `strips` says which rows and keys those are.
"""

import threading
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..statistics import Sums, View
from .strips import Strip, Tile, plan

# Bytes of weights at a time: half of a core's L2 cache. Measured at 512 and 1,024 tokens, 8 heads of 32,
# L2 of 2 MiB: product, exponential and column sums take 1.60 and 5.6 ms a layer in tiles of 1 MiB of one
# head; 1.85 and 7.2 in tiles of 2 MiB of all heads; 1.75 and 5.8 in tiles of 512 KiB of one head.
_BLOCK_BYTES = 1 << 20
_BLOCK_BYTES_CUDA = 256 << 20
# Log-sum-exps up to here are left for the end: exp(score) · exp(−lse) is as exact as exp(score − lse), as
# neither leaves float32, and what is below 1e-12 of a row may be lost. It saves a pass, or a copy of keys.
_MILD = 60.0


@dataclass(frozen=True, eq=False)
class _Factors:
    """`factor` · query · key is the logarithm of weights, to which each row's `later` is still missing."""

    query: Float[Tensor, "n per q e"]  # n: prompts × heads of keys; per: heads that share a key
    key: Float[Tensor, "n k e"]
    factor: float
    later: (
        Float[Tensor, "b h q"] | None
    )  # the log-sum-exp; None: nothing is missing, or it is unknown
    known: bool  # no row's log-sum-exp is to be computed


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Sums:
    """Column sums by query group; on request row entropy, region sums, and the rollout's step."""
    b, h, n_query = view.query.shape[:3]
    kv, n_key = view.key.shape[1:3]
    per, n_groups = h // kv, view.labels.n_groups
    factors = _factors(view)
    times = None if factors.later is None else (-factors.later).exp_()  # (b, h, q)
    of_group = view.labels.of_group[:, None]  # (b, 1, g, q)
    of_group = of_group.expand(b, h, -1, -1) if times is None else of_group * times[:, :, None]
    of_group = of_group.reshape(b * h, n_groups, n_query)
    values = _values(view, regions, whole=entropy and times is not None)  # (b, v, k)
    numbers = (_BLOCK_BYTES_CUDA if view.query.is_cuda else _BLOCK_BYTES) // 4
    planned = plan(view, numbers // 2 if entropy else numbers)
    space = _space(factors.key, 2 if entropy else 1, max(t.size for _, ts in planned for t in ts))
    if len(planned) == len(planned[0][1]) == 1 and values is None and not entropy:
        strip, (tile,) = planned[0]  # a short forward, whose calls take longer than their work
        weight, _ = _weights(view, factors, strip, tile, _hidden(view, strip, tile.rows), space)
        column = torch.bmm(of_group, weight).view(b, h, n_groups, n_key)
        return Sums(column.transpose(1, 2), None, None, None)
    column = factors.key.new_zeros(b * h, n_groups, n_key)
    entropies = column.new_empty(b * h, n_query) if entropy else None
    gathered = None if values is None else column.new_empty(b * h, values.shape[1], n_query)
    for strip, parts in planned:
        last, hidden, rows = strip.last, None, None
        for tile in parts:
            if tile.rows is not rows:  # its heads come one after another
                rows, hidden = tile.rows, _hidden(view, strip, tile.rows)
            heads = slice(tile.pairs.start * per, tile.pairs.stop * per)
            weight, log_weight = _weights(view, factors, strip, tile, hidden, space)
            if entropies is not None and log_weight is not None:
                entropies[heads, rows] = log_weight.mul_(weight).sum(-1)
            if last == n_key:
                column[heads].baddbmm_(of_group[heads, :, rows], weight)
            else:  # a part of all columns is no matrix that a product could add to
                column[heads, :, :last] += torch.bmm(of_group[heads, :, rows], weight)
            if gathered is not None and values is not None:
                # Values × weightsᵀ, not weights × values: few columns make the second product slow.
                left = values[tile.prompts, None, :, :last]
                left = left.expand(-1, per * (tile.heads.stop - tile.heads.start), -1, -1)
                gathered[heads, :, rows] = torch.bmm(left.flatten(0, 1), weight.mT)
    return _together(view, factors, times, column, entropies, gathered, regions)


def _together(
    view: View,
    factors: _Factors,
    times: Tensor | None,
    column: Float[Tensor, "n g k"],
    entropies: Float[Tensor, "n q"] | None,
    gathered: Float[Tensor, "n v q"] | None,
    regions: bool,
) -> Sums:
    b, h = view.query.shape[:2]
    region_sum = rolled = None
    if gathered is not None:
        gathered = gathered.unflatten(0, (b, h))  # (b, h, v, q)
        gathered = gathered if times is None else gathered.mul_(times[:, :, None])
        n = view.labels.n_regions if regions else 0
        if regions:
            region_sum = gathered[:, :, :n].mT
        if view.state is not None:
            rolled = gathered[:, :, n : n + view.state.shape[-1]].mean(1).mT
    if entropies is not None:
        entropies = entropies.unflatten(0, (b, h)).neg_()
        if times is not None and factors.later is not None and gathered is not None:
            # −Σ w (s − lse) with Σ w as it was computed: its rounding would count lse times.
            entropies = entropies.mul_(times).addcmul_(factors.later, gathered[:, :, -1])
    column = column.unflatten(0, (b, h)).transpose(1, 2)
    return Sums(column, entropies, region_sum, rolled)


def _factors(view: View) -> _Factors:
    b, kv, n_key, d = view.key.shape
    query, key, lse = view.query.float(), view.key.float(), view.lse
    factor, later = view.scale, None
    if lse is not None and lse.is_cpu and float(lse.abs().amax()) < _MILD:
        later = lse.contiguous()  # the kernel has heads side by side
    elif lse is not None:  # −lse is a further number of q that meets a one of k
        one = key.new_ones(()).expand(b, kv, n_key, 1)
        query = torch.cat([query * factor, -lse[..., None]], dim=-1)
        key, factor, d = torch.cat([key, one], dim=-1), 1.0, d + 1
    query = query.reshape(b * kv, query.shape[1] // kv, -1, d)
    return _Factors(query, key.reshape(b * kv, n_key, d), factor, later, lse is not None)


def _values(view: View, regions: bool, whole: bool) -> Float[Tensor, "b v k"] | None:
    """What a row's weights are multiplied with: regions as ones and zeros, the rollout's state, and ones."""
    beside = [view.labels.in_region] if regions else []
    beside += [] if view.state is None else [view.state.float()]
    beside += [torch.ones_like(view.labels.region, dtype=torch.float32)[..., None]] if whole else []
    return torch.cat(beside, dim=-1).mT.contiguous() if beside else None


_kept = threading.local()


def _space(like: Tensor, n: int, size: int) -> Float[Tensor, "n _"]:
    """Memory to work in. On a CPU a thread keeps it from layer to layer: fresh memory is slow at first."""
    if not like.is_cpu:
        return like.new_empty(n, size)
    latest: Tensor | None = getattr(_kept, "latest", None)
    if latest is not None and latest.shape == (n, size):  # the layer before was alike
        return latest
    flat: Tensor | None = getattr(_kept, "flat", None)
    if flat is None or flat.numel() < n * size:
        with torch.inference_mode(False):
            flat = torch.empty(n * size, dtype=torch.float32)
    space = flat[: n * size].view(n, size)
    if n * size * 4 <= 4 * _BLOCK_BYTES:  # one row of many keys may take more
        _kept.flat, _kept.latest = flat, space
    return space


def _weights(
    view: View,
    factors: _Factors,
    strip: Strip,
    tile: Tile,
    hidden: Tensor | None,
    space: Float[Tensor, "both _"],
) -> tuple[Float[Tensor, "m r k"], Float[Tensor, "m r k"] | None]:
    """Weights of a tile's rows (but for `later`) over keys 0 … last; with room for two, their logarithm.

    Both have all heads of all prompts in one axis; the logarithm of a hidden key is 0, not −inf.
    """
    seen, last = strip.seen, strip.last
    query, key = factors.query, factors.key
    if not tile.whole:
        query, key = query[tile.pairs, :, tile.rows], key[tile.pairs, :last]
    n, per, rows, d = query.shape
    product = space[0, : tile.size].view(n, per * rows, last)
    left, right = query.reshape(n, per * rows, d), key.mT
    torch.baddbmm(product, left, right, beta=0, alpha=factors.factor, out=product)
    log_weight = product if per == 1 else product.view(n * per, rows, last)
    by_head = (tile.prompts.stop - tile.prompts.start, -1, per, rows, last)  # (b, kv, per, rows, k)
    if view.bias is not None:
        bias = view.bias.unflatten(1, (-1, per))[tile.prompts, tile.heads, ..., :last]
        log_weight.view(by_head).add_(bias)
    if hidden is not None:
        hidden = hidden[tile.prompts] if len(hidden) > 1 else hidden
        hidden = hidden[:, tile.heads] if hidden.shape[1] > 1 else hidden
        log_weight.view(by_head)[..., seen:].masked_fill_(hidden, -torch.inf)
    if not factors.known:
        log_weight.sub_(log_weight.logsumexp(-1, keepdim=True))
    if len(space) == 1:
        return log_weight.exp_(), None
    weight = torch.exp(log_weight, out=space[1, : tile.size].view(n * per, rows, last))
    if hidden is not None:
        log_weight.view(by_head)[..., seen:].masked_fill_(hidden, 0)
    return weight, log_weight


def _hidden(view: View, strip: Strip, rows: slice) -> Tensor | None:
    """True where a row may not look, for keys seen … last, as (#b, #kv, #per, rows, keys)."""
    if strip.hidden is not None:
        return strip.hidden[rows.start - strip.start : rows.stop - strip.start][None, None, None]
    if strip.seen == strip.last or view.mask is None:
        return None
    part = ~view.mask[:, :, rows, strip.seen : strip.last]
    return part[:, :, None] if part.shape[1] == 1 else part.unflatten(1, (view.key.shape[1], -1))
