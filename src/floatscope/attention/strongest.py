"""The strongest keys of the rows that may be revealed, on a GPU: launches `strongest_kernels`.

Which rows a step reveals is known only after the forward. Holding every layer's keys until then
costs memory as a KV cache does; the few strongest keys of every candidate cost next to nothing.
"""

from types import ModuleType

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from .fused import Launch

_BLOCK = 64
_SCRATCH = 128 << 20  # bytes of logarithms at a time


def _kernels() -> ModuleType:
    from . import strongest_kernels

    return strongest_kernels


def strongest(
    launch: Launch, start: int, stop: int, top: int
) -> tuple[Int32[Tensor, "b h w t"], Float[Tensor, "b h w t"]]:
    """Keys and weights of rows start … stop − 1, the strongest first; −1 and 0 where there are none."""
    view, plan = launch.view, launch.plan
    b, h, n_query, dim = view.query.shape
    n_key, n_rows, device = view.key.shape[2], stop - start, view.query.device
    n_blocks = -(-n_key // _BLOCK)
    key = torch.empty((b, h, n_rows, top), dtype=torch.int32, device=device)
    weight = torch.empty((b, h, n_rows, top), dtype=torch.float32, device=device)
    each = n_rows * n_blocks * _BLOCK * 4  # bytes a head
    at_once = max(1, min(b * h, _SCRATCH // each))
    shape = (at_once, n_rows, n_blocks)
    power = torch.empty((*shape, _BLOCK), dtype=torch.float32, device=device)
    peak = torch.empty(shape, dtype=torch.float32, device=device)
    tile = 16 if n_rows <= 16 else 64
    rows_a_program = 4
    for begin in range(0, b * h, at_once):
        heads = min(at_once, b * h - begin)
        _kernels().row_powers[(n_blocks, -(-n_rows // tile), heads)](
            *(view.query, view.key, launch.lse, plan.last, launch.mask, plan.padding, power, peak),
            *(begin, h, h // view.key.shape[1], n_query, n_key, start, n_rows, n_blocks),
            *view.query.stride(),
            *view.key.stride(),
            *launch.mask_strides,
            launch.log2_scale,
            DIM=dim,
            WIDE=launch.wide,
            TILE_Q=tile,
            BLOCK=_BLOCK,
            MASKED=not launch.ruled,
            EXACT=launch.exact,
        )
        n_all = heads * n_rows
        _kernels().strongest[(-(-n_all // rows_a_program),)](
            power,
            peak,
            key.flatten(0, 1)[begin:],
            weight.flatten(0, 1)[begin:],
            n_all,
            n_blocks,
            TOP=top,
            ROWS=rows_a_program,
            BLOCKS=max(2, 1 << (n_blocks - 1).bit_length()),
            BLOCK=_BLOCK,
        )
    return key, weight
