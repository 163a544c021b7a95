"""Decide when the Hopper kernels apply, and launch them.

The copy engine of the GPU must be able to read q and k as one matrix each: rows at a fixed distance, and
every head a range of columns or of rows. Networks produce q and k in two layouts, and both layouts meet this
requirement.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..shapes import View
from .plan import Plan

# The fastest ones measured on an H200. The operand of the inner loop is copied two tiles at a time.
TILE_Q, TILE_K, WARPS = 64, 128, 4
ROW_TILE_Q, ROW_TILE_K, ROW_WARPS = 128, 64, 8
PAIR = 2 * ROW_TILE_K
STAGES = 2
MOST_VALUES = 32


def takes(view: View) -> bool:
    """Return whether the kernels support a view.

    They require a Hopper GPU, 16-bit heads of 64 or 128 numbers, and a layout that the copy engine can read.
    """
    query, key = view.query, view.key
    if (
        _refused
        or not query.is_cuda
        or query.dtype == torch.float32
        or query.shape[-1] not in (64, 128)
    ):
        return False
    if _matrix(query) is None or _matrix(key) is None:
        return False
    return _is_hopper(query.device) and _kernels() is not None


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


@cache
def _kernels() -> tuple[ModuleType, ModuleType] | None:
    """Return the modules `hopper` and `hopper_rows`; None if Gluon's experimental interface has changed."""
    try:
        from . import hopper, hopper_rows
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"the overlapped kernel failed, using the plain kernel: {error}", stacklevel=2
        )
        return None
    return hopper, hopper_rows


def _matrix(x: Tensor) -> tuple[list[int], int, int, int] | None:
    """Describe how x (b, h, n, d) lies in memory as one matrix; None if the copy engine cannot read it.

    The result is the shape of the matrix, and the numbers of rows per batch, rows per head and columns per
    head.
    """
    b, h, n, d = x.shape
    of_batch, of_head, of_row, of_dim = x.stride()
    if of_dim != 1 or x.data_ptr() % 16 or of_row % 8:
        return None
    if of_row == h * d and of_head == d and (b == 1 or of_batch == n * of_row):
        return [b * n, h * d], n, 0, d
    if of_row == d and of_head == n * d and (b == 1 or of_batch == h * of_head):
        return [b * h * n, d], h * n, n, 0
    return None


@cache
def _block(tile: int, width: int, dtype: torch.dtype) -> Any:
    """Return the layout of a tile in shared memory; cached, because it is slow to compute."""
    from triton.experimental.gluon import language as gl

    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([tile, width], kind)


def _describe(x: Tensor, tile: int) -> tuple[Any, tuple[int, int, int]]:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout_of_x = _matrix(x)
    assert layout_of_x is not None
    shape, batch, head, column = layout_of_x
    width = x.shape[-1]
    layout = _block(tile, width, x.dtype)
    return TensorDescriptor(x, shape, [shape[1], 1], [tile, width], layout), (batch, head, column)


_refused: list[str] = []


def column_sums(view: View, offsets: Tensor, padding: Tensor, spans: Tensor, out: Tensor) -> bool:
    """Write the column sums to `out` (b, g, h, k), and return whether the kernel ran.

    `offsets` and `spans` must be those for tiles of TILE_Q queries.
    """
    return _try_launch(lambda: _columns(view, offsets, padding, spans, out))


def row_sums(
    view: View, values: Tensor, lse: Tensor, plan: Plan, entropy: Tensor, out: Tensor, shift: int
) -> bool:
    """Write row sums to `entropy` (b, h, q) and `out` (b, h, q, v), and return whether the kernel ran.

    `values` (b, n, v) are padded with zeros to whole pairs of tiles, PAIR rows each.
    """
    return _try_launch(lambda: _rows(view, values, lse, plan, entropy, out, shift))


def _try_launch(launch: Callable[[], None]) -> bool:
    try:
        launch()
    except Exception as error:  # on any compiler error, use the plain kernel
        _refused.append(repr(error))
        warnings.warn(
            f"the overlapped kernel failed, using the plain kernel: {error!r:.200}", stacklevel=3
        )
        return False
    return True


def _columns(view: View, offsets: Tensor, padding: Tensor, spans: Tensor, out: Tensor) -> None:
    kernels = _kernels()
    assert kernels is not None
    b, h, _, dim = view.query.shape
    n_key = view.key.shape[2]
    query, query_at = _describe(view.query, 2 * TILE_Q)
    key, key_at = _describe(view.key, TILE_K)
    kernels[0].column_sums[(-(-n_key // TILE_K), b * h)](
        *(query, key, offsets, padding, spans, out),
        *(h, h // view.key.shape[1], n_key, out.shape[1], offsets.shape[-1]),
        *query_at,
        *key_at,
        view.scale * math.log2(math.e),
        DIM=dim,
        TILE_Q=TILE_Q,
        TILE_K=TILE_K,
        STAGES=STAGES,
        num_warps=WARPS,
    )


def _rows(
    view: View, values: Tensor, lse: Tensor, plan: Plan, entropy: Tensor, out: Tensor, shift: int
) -> None:
    kernels = _kernels()
    assert kernels is not None
    b, h, n_query, dim = view.query.shape
    query, query_at = _describe(view.query, ROW_TILE_Q)
    key, key_at = _describe(view.key, PAIR)
    value, _ = _describe(values[:, None], PAIR)
    kernels[1].row_sums[(-(-n_query // ROW_TILE_Q), b * h)](
        *(query, key, value, lse, plan.group, plan.padding, entropy, out),
        *(h, h // view.key.shape[1], n_query, view.key.shape[2], values.shape[1]),
        *query_at,
        *key_at,
        view.scale * math.log2(math.e),
        DIM=dim,
        TILE_Q=ROW_TILE_Q,
        TILE_K=ROW_TILE_K,
        VALUES=values.shape[-1],
        SHIFT=shift,
        STAGES=STAGES,
        num_warps=ROW_WARPS,
        maxnreg=128,  # two programs per multiprocessor
    )
