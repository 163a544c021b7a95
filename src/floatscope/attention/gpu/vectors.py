"""Compute the results of `closed_form.columns` and `norms.value_norms` on a GPU; launches `vector_kernels`.

Each tensor is read about once and never converted to a wider type in memory.
"""

from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...models import Direction
from ..cpu import norms
from ..shapes import Arrays, View
from .plan import plan_of

KEY_ARRAYS = ("score", "cosine", "query_norm", "key_norm")  # in the order of the kernels
_TILE = 64
_VALUE_TILE = 128  # each tile reads a head's whole factor
_ROW_TILE, _ROW_TILES = 64, 8  # rows per tile, and tiles per program


def _kernels() -> ModuleType:
    from . import vector_kernels

    return vector_kernels


def columns(view: View) -> Arrays:
    """Compute the arrays of `closed_form.columns`."""
    kernels = _kernels()
    b, h, n_query, dim = view.query.shape
    n_key, wide = view.key.shape[2], max(16, 1 << (dim - 1).bit_length())
    plan = plan_of(view.labels, view.visible, True)
    tiles = -(-n_query // _TILE)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=view.query.device)

    sizes = {"DIM": dim, "WIDE": wide, "TILE": _TILE}
    directed = view.visible.direction is not Direction.BIDIRECTIONAL
    single_tile = directed and tiles == 1  # the only tile is read directly
    parts = empty(b, h, tiles, 2 * wide + 1)
    if not single_tile:
        kernels.query_totals[(tiles, b * h)](
            *(view.query, plan.group, parts, h, n_query, tiles, *view.query.stride()),
            **sizes,
            num_warps=1,
        )
    if single_tile:
        after = plan.nothing((b, h, 2, 2 * wide + 1))
    elif directed:
        # Sums over all later tiles, as a running sum in float64.
        after = parts.double().flip(2).cumsum(2).flip(2).float()
        after = torch.nn.functional.pad(after, (0, 0, 0, 1))  # (b, h, tiles + 1, 2 · wide + 1)
    else:
        after = parts.sum(2, keepdim=True)
    arrays = {name: empty(b, h, n_key) for name in KEY_ARRAYS}
    kernels.key_columns[(-(-n_key // _TILE), b * h)](
        *(view.query, view.key, plan.group, after, plan.first_viewer, plan.padding),
        *arrays.values(),
        *(h, h // view.key.shape[1], n_query, n_key, tiles if directed else 0),
        *view.query.stride(),
        *view.key.stride(),
        **sizes,
        DIRECTED=directed,
        EXACT=view.query.dtype == torch.float32,
    )
    return {**arrays, "viewers": plan.viewers}


def value_norms(module: nn.Module, value: Tensor) -> Tensor:
    """Compute `norms.value_norms` with the factor split into two 16-bit halves, without loss of precision."""
    b, kv, n_key, dim = value.shape
    if value.dtype == torch.float32 or dim not in (16, 32, 64, 128):
        return norms.value_norms(module, value)
    high, low = norms.halves(module, dim, value.dtype)
    h = len(high)
    out = torch.empty((b, h, n_key), dtype=torch.float32, device=value.device)
    _kernels().value_norms[(-(-n_key // _VALUE_TILE), b * h)](
        *(value, high, low, out, h, h // kv, n_key),
        *value.stride(),
        DIM=dim,
        TILE=_VALUE_TILE,
        num_warps=8,
    )
    return out


def region_totals(
    from_region: Float[Tensor, "b q f"], by_row: Float[Tensor, "b h q r"]
) -> Float[Tensor, "b h f r"]:
    """Sum `by_row` over the rows of each region; torch's matrix product takes several times as long."""
    b, h, n_query, n = by_row.shape
    n_from = from_region.shape[-1]
    parts = -(-n_query // (_ROW_TILE * _ROW_TILES))
    out = torch.empty((b, h, parts, n_from, n), dtype=torch.float32, device=by_row.device)
    _kernels().region_totals[(parts, b * h)](
        *(from_region.contiguous(), by_row, out, h, n_query, n_from, n, parts),
        *by_row.stride(),
        FROM=max(16, 1 << (n_from - 1).bit_length()),
        VALUES=max(16, 1 << (n - 1).bit_length()),
        TILE=_ROW_TILE,
        TILES=_ROW_TILES,
        num_warps=4,
    )
    return out[:, :, 0] if parts == 1 else out.sum(2)


def norms_of(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """Compute the norm of each vector."""
    b, n, dim = x.shape
    x = x.contiguous()
    out = torch.empty((b, n), dtype=torch.float32, device=x.device)
    _kernels().row_norms[(b * n,)](x, out, dim, TILE=1024)
    return out
