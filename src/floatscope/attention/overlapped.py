"""When the Hopper kernel applies, and how it is launched.

It reads q and k by the copy engine, which wants each to be one matrix: rows at a fixed distance, a
head either a range of columns or a range of rows. Both layouts that networks produce are.
"""

import math
import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .statistics import View

TILE_Q, TILE_K, STAGES, WARPS = 64, 128, 3, 4


def takes(view: View) -> bool:
    """A Hopper GPU, 16-bit heads of 64 or 128 numbers, in a layout the copy engine reads."""
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
    return torch.cuda.get_device_capability(query.device)[0] == 9 and _kernels() is not None


@cache
def _kernels() -> ModuleType | None:
    """Gluon is experimental: where its interface has moved on, the plain kernel serves."""
    try:
        from . import hopper
    except (ImportError, AttributeError) as error:
        warnings.warn(f"no overlapped kernel, the plain one serves: {error}", stacklevel=2)
        return None
    return hopper


def _matrix(x: Tensor) -> tuple[list[int], int, int, int] | None:
    """x (b, h, n, d) as one matrix: its shape, rows a batch, rows a head, columns a head."""
    b, h, n, d = x.shape
    of_batch, of_head, of_row, of_dim = x.stride()
    if of_dim != 1 or x.data_ptr() % 16 or of_row % 8:
        return None
    if of_row == h * d and of_head == d and (b == 1 or of_batch == n * of_row):
        return [b * n, h * d], n, 0, d
    if of_row == d and of_head == n * d and (b == 1 or of_batch == h * of_head):
        return [b * h * n, d], h * n, n, 0
    return None


def _described(x: Tensor, tile: int) -> tuple[Any, tuple[int, int, int]]:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    found = _matrix(x)
    assert found is not None
    shape, batch, head, column = found
    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    block = [tile, x.shape[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(block, kind)
    return TensorDescriptor(x, shape, [shape[1], 1], block, layout), (batch, head, column)


_refused: list[str] = []


def column_sums(view: View, offsets: Tensor, padding: Tensor, spans: Tensor, out: Tensor) -> bool:
    """Fills `out` (b, g, h, k), or says that it could not; `offsets` and `spans` are for tiles of
    TILE_Q queries."""
    try:
        _launch(view, offsets, padding, spans, out)
    except Exception as error:  # whatever a compiler may say: the plain kernel is as right
        _refused.append(repr(error))
        warnings.warn(f"no overlapped kernel, the plain one serves: {error!r:.200}", stacklevel=2)
        return False
    return True


def _launch(view: View, offsets: Tensor, padding: Tensor, spans: Tensor, out: Tensor) -> None:
    kernels = _kernels()
    assert kernels is not None
    b, h, _, dim = view.query.shape
    n_key = view.key.shape[2]
    query, query_at = _described(view.query, TILE_Q)
    key, key_at = _described(view.key, TILE_K)
    kernels.column_sums[(-(-n_key // TILE_K), b * h)](
        query,
        key,
        offsets,
        padding,
        spans,
        out,
        h,
        h // view.key.shape[1],
        n_key,
        out.shape[1],
        offsets.shape[-1],
        *query_at,
        *key_at,
        view.scale * math.log2(math.e),
        DIM=dim,
        TILE_Q=TILE_Q,
        TILE_K=TILE_K,
        STAGES=STAGES,
        num_warps=WARPS,
    )
