"""Compute attention sums on any device in bounded memory: one tile of rows and heads at a time.

Given the log-sum-exp from SDPA, one matrix product per tile yields the weights (module `weights`), and all
sums are taken while the tile is still in cache. In a short forward the overhead of torch calls dominates, so
each tensor is cut into tiles once, with `split`.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..shapes import Arrays, Labels, View
from .strips import plan
from .weights import Weight, Weights

# Bytes of weights per tile: half of a core's L2 cache. Measured at 512 and 1,024 tokens, 8 heads of 32,
# L2 of 2 MiB: product, exponential and column sums take 1.60 and 5.6 ms per layer in tiles of 1 MiB of one
# head; 1.85 and 7.2 ms in tiles of 2 MiB of all heads; 1.75 and 5.8 ms in tiles of 512 KiB of one head.
_BLOCK_BYTES = 1 << 20
_BLOCK_BYTES_CUDA = 256 << 20
# With at least this many threads, two multithreaded passes of torch are faster than one pass of numpy.
_MANY_THREADS = 3


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Arrays:
    """Compute column sums by query group, row entropies, region sums and the product of weights and state.

    `entropy` and `regions` say whether to include row entropies and region sums. The product, which the
    rollout uses, is averaged over heads and is included if the view has a `state`.
    """
    b, h, n_query = view.query.shape[:3]
    per, n_key = h // view.key.shape[1], view.key.shape[2]
    weights = Weights(view, logarithms=entropy)
    later = weights.later
    times = None if later is None else torch.neg(later).exp_()  # (b, h, q)
    of_group = _group_factors(view.labels, h, times)  # (b·h, g, q)
    values = _values(view, regions, add_ones=entropy and later is not None)  # (b·h, v, k)
    numbers = (_BLOCK_BYTES_CUDA if view.query.is_cuda else _BLOCK_BYTES) // 4
    planned = plan(view, numbers // 2 if entropy else numbers)
    at_once = len(planned) == len(planned[0][1]) == 1 and planned[0][0].last == n_key
    column = of_group.new_empty(b * h, view.labels.n_groups, n_key)
    column = column if at_once else column.zero_()
    entropies = column.new_empty(b * h, n_query) if entropy else None
    gathered = None if values is None else column.new_empty(b * h, values.shape[1], n_query)
    for strip, bands in planned:
        last, heads = strip.last, [n * per for n in bands[0].pairs]
        columns = column[:, :, :last].split(heads)
        value = None if values is None else values[:, :, :last].split(heads)
        for band in bands:
            group = (of_group if band.all_rows else of_group[:, :, band.rows]).split(heads)
            by_row = None if entropies is None else entropies[:, band.rows].split(heads)
            to = None if gathered is None else gathered[:, :, band.rows].split(heads)
            for n, (weight, log_weight) in enumerate(weights.compute(strip, band)):
                if by_row is not None and log_weight is not None:
                    _row_products(weight, log_weight, by_row[n])
                if at_once:
                    torch.bmm(group[n], weight, out=columns[n])
                elif last == n_key:
                    columns[n].baddbmm_(group[n], weight)
                else:  # baddbmm_ cannot add to a part of the columns
                    columns[n].add_(torch.bmm(group[n], weight))
                if value is not None and to is not None:
                    # Values × weightsᵀ is faster than weights × values, which has few columns.
                    if len(weight) == 1:  # `to[n]` need not be contiguous
                        torch.bmm(value[n], weight.mT, out=to[n])
                    else:
                        to[n].copy_(torch.bmm(value[n], weight.mT))
    arrays = {"column_sum": column.view(b, h, -1, n_key).transpose(1, 2)}
    if entropies is not None:
        arrays["entropy"] = entropies.view(b, h, n_query).neg_()
    if gathered is None:
        return arrays
    gathered = gathered.view(b, h, -1, n_query)
    gathered = gathered if times is None else gathered.mul_(times[:, :, None])
    n = view.labels.n_regions if regions else 0
    if entropies is not None and times is not None and later is not None:
        # Use the computed Σ w, not 1: its rounding error would be multiplied by lse.
        total = gathered[:, :, -1]
        if regions and view.labels.every_key:
            total = gathered[:, :, :n].sum(2)
        arrays["entropy"].mul_(times).addcmul_(later, total)
    if view.state is not None:
        arrays["rolled"] = gathered[:, :, n : n + view.state.shape[-1]].mean(1).mT
    if regions:
        arrays["region_sum"] = gathered[:, :, :n].mT
    return arrays


def _group_factors(labels: Labels, heads: int, times: Tensor | None) -> Float[Tensor, "n g q"]:
    """Return each query's factor in the column sums of each group; 0 in the groups of other queries.

    In the query's own group, the factor is 1, or `times` = exp(−lse) if the weights lack the factor
    exp(−lse).
    """
    if times is not None and labels.one_group:
        return times.view(-1, 1, times.shape[-1])
    of_group = labels.of_group[:, None]  # (b, 1, g, q)
    factors = of_group.expand(-1, heads, -1, -1) if times is None else of_group * times[:, :, None]
    return factors.flatten(0, 1)


def _values(view: View, regions: bool, add_ones: bool) -> Float[Tensor, "n v k"] | None:
    """Concatenate what the weights multiply: region indicators, rollout state, ones; None if nothing."""
    parts = [view.labels.by_region] if regions else []
    parts += [] if view.state is None else [view.state.float().mT]
    if add_ones and not (regions and view.labels.every_key):
        ones = view.labels.real if view.labels.every_key else torch.ones_like(view.labels.real)
        parts.append(ones)
    if not parts:
        return None
    values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)  # (b, v, k)
    return values.contiguous()[:, None].expand(-1, view.query.shape[1], -1, -1).flatten(0, 1)


def _row_products(a: Weight, b: Weight, out: Float[Tensor, "m r"]) -> None:
    """Write Σ_j a_ij b_ij to `out`; `b` may be overwritten.

    At 512 tokens on one thread, numpy's vecdot takes 0.17 ms per layer, because it does not store the
    products; torch's multiplication and sum take 0.40 ms.
    """
    if a.is_cpu and torch.get_num_threads() < _MANY_THREADS:
        np.vecdot(a.numpy(), b.numpy(), out=out.numpy())
    else:
        torch.sum(b.mul_(a), -1, out=out)
