"""Compute the sums of few rows on a GPU, as in a step with a KV cache; launches `few_kernels`.

For few rows, attention's forward returns no log-sum-exp, and each of the kernels for many rows would compute
the product of q and k again. This module writes the logarithms of the weights once, as (b, h, q, k) numbers,
and computes all sums from these logarithms, in five launches per layer.
"""

from dataclasses import replace
from types import ModuleType

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from ..shapes import FewRowSums, View
from . import strongest as peaks
from .fused import Launch, head_means
from .plan import plan_of
from .vectors import KEY_ARRAYS

_NUMBERS = 8192  # numbers that a program loads at once
_COLUMNS = 256
_MOST = 128 << 20  # bytes of logarithms


def _kernels() -> ModuleType:
    from . import few_kernels

    return few_kernels


def strongest(
    sums: FewRowSums, start: int, stop: int, top: int
) -> tuple[Int32[Tensor, "b h w t"], Float[Tensor, "b h w t"]]:
    """Return keys and weights of rows start … stop − 1 as `strongest.strongest` does. Call only once."""
    b, _, h, _ = sums.arrays["column_sum"].shape
    power, peak = sums.power[:, start:stop], sums.peak[:, start:stop]
    key, weight = peaks.find(power.contiguous(), peak.contiguous(), top)
    return key.unflatten(0, (b, h)), weight.unflatten(0, (b, h))


def fits(view: View) -> bool:
    """Return whether the logarithms of all weights fit into `_MOST` bytes."""
    b, h, n_query, _ = view.query.shape
    return b * h * n_query * view.key.shape[2] * 4 <= _MOST


def measured(view: View, columns: bool = False) -> View:
    """Return the view with its log-sum-exp and all sums; with `columns`, also statistics of q and k alone."""
    b, h, n_query, dim = view.query.shape
    n_key, labels, device = view.key.shape[2], view.labels, view.query.device
    plan = plan_of(labels, view.visible, view.ruled)
    launch = Launch(replace(view, lse=plan.nothing((b, h, n_query))))
    columns = columns and launch.ruled and view.visible.reach is None  # otherwise a mask hides more

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    block = peaks.BLOCK
    n_blocks = -(-n_key // block)
    power, peak = empty(b * h, n_query, n_blocks, block), empty(b * h, n_query, n_blocks)
    shape = (b, h, n_key) if columns else (1,)
    of_keys = {name: empty(*shape) for name in KEY_ARRAYS}
    tensors = (view.query, view.key, plan.group, plan.last, launch.mask, plan.padding, power, peak)
    kind = {"DIM": dim, "WIDE": launch.wide, "BLOCK": block, "COLUMNS": columns}
    kind |= {"MASKED": not launch.ruled, "EXACT": launch.exact}
    sharing = h // view.key.shape[1]
    q_batch, q_head, q_row, q_dim = view.query.stride()
    m_batch, m_head, m_row = launch.mask_strides
    if n_query == 1:
        _kernels().one_scores[(n_blocks, b * h // sharing)](
            *(*tensors, *of_keys.values(), h, n_key, n_blocks, q_batch, q_head, q_dim),
            *(*view.key.stride(), m_batch, m_head, launch.log2_scale),
            HEADS=sharing,
            TILE_H=max(16, 1 << (sharing - 1).bit_length()),
            **kind,
        )
    else:
        _kernels().few_scores[(n_blocks, b * h)](
            *(*tensors, *of_keys.values(), h, sharing, n_query, n_key, n_blocks),
            *(q_batch, q_head, q_row, q_dim, *view.key.stride(), m_batch, m_head, m_row),
            launch.log2_scale,
            TILE_Q=16 if n_query <= 16 or launch.exact else 64,
            **kind,
        )
    parts = [labels.in_region, *([] if view.state is None else [view.state.float()])]
    n, wide = labels.n_regions, max(2, 1 << (sum(v.shape[-1] for v in parts) - 1).bit_length())
    values = plan.side_by_side(parts, n_key, wide, torch.float32)
    lse, entropy = empty(b, h, n_query), empty(b, h, n_query)
    weighted = empty(b, h, n_query, wide)
    _kernels().few_rows[(b * h * n_query,)](
        *(power, peak, values, plan.group, lse, entropy, weighted),
        *(h, n_query, n_key, n_blocks, n_key),
        VALUES=wide,
        BLOCK=block,
        TILE=max(16, min(1024, _NUMBERS // wide)),
    )
    column = empty(b, plan.n_groups, h, n_key)
    _kernels().few_columns[(-(-n_key // _COLUMNS), b * h)](
        *(power, plan.group, plan.padding, column),
        *(h, n_query, n_key, plan.n_groups, n_blocks * block),
        TILE=_COLUMNS,
    )
    arrays = {"column_sum": column, "entropy": entropy, "region_sum": weighted[..., :n]}
    if view.state is not None:
        arrays["rolled"] = head_means(weighted, n, view.state.shape[-1])
    if columns:
        arrays |= of_keys | {"viewers": plan.viewers}
    return replace(view, lse=lse, few_sums=FewRowSums(labels, arrays, power, peak))
