"""`blocked.columns` and `norms.value_norms` on a GPU, each tensor read once: launches `vector_kernels`.

For attention in both directions. Where a key is seen by some queries alone its sums differ from
key to key, and `blocked`'s suffix sums serve; so they do for values that are not 16-bit.
"""

from types import ModuleType

import torch
from torch import Tensor, nn

from ..models import Direction
from . import blocked, norms
from .plan import plan_of
from .statistics import Columns, View

_TILE = 64


def _kernels() -> ModuleType:
    from . import vector_kernels

    return vector_kernels


def columns(view: View) -> Columns:
    if view.visible.direction is not Direction.BIDIRECTIONAL:
        return blocked.columns(view)
    kernels = _kernels()
    b, h, n_query, dim = view.query.shape
    n_key, wide = view.key.shape[2], max(16, 1 << (dim - 1).bit_length())
    plan = plan_of(view.labels, view.visible, True)
    tiles = -(-n_query // _TILE)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=view.query.device)

    parts = empty(b, h, tiles, 2 * wide + 1)
    sizes = {"DIM": dim, "WIDE": wide, "TILE": _TILE}
    kernels.query_totals[(tiles, b * h)](
        view.query, plan.group, parts, h, n_query, tiles, *view.query.stride(), **sizes
    )
    total = parts.sum(2)
    score, cosine, query_norm, key_norm = (empty(b, h, n_key) for _ in range(4))
    kernels.key_columns[(-(-n_key // _TILE), b * h)](
        view.key,
        total,
        plan.padding,
        score,
        cosine,
        query_norm,
        key_norm,
        h,
        h // view.key.shape[1],
        n_key,
        *view.key.stride(),
        **sizes,
    )
    return Columns(score, cosine, query_norm, key_norm, plan.seen)


def value_norms(module: nn.Module, value: Tensor) -> Tensor:
    """`norms.value_norms`; the factor is split in two 16-bit halves, so nothing is rounded away."""
    b, kv, n_key, dim = value.shape
    if value.dtype == torch.float32 or dim not in (16, 32, 64, 128):
        return norms.value_norms(module, value)
    high, low = norms.halves(module, dim, value.dtype)
    h = len(high)
    out = torch.empty((b, h, n_key), dtype=torch.float32, device=value.device)
    _kernels().value_norms[(-(-n_key // _TILE), b * h)](
        value, high, low, out, h, h // kv, n_key, *value.stride(), DIM=dim, TILE=_TILE
    )
    return out
