"""Find the strongest keys of a few rows on a GPU, or the rows' log-sum-exp; launches `strongest_kernels`.

The rows that a step reveals are known only after the forward. Storing the keys of every layer until then
would need as much memory as a KV cache. The strongest keys of every candidate row need only some dozen
numbers per row and head.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from ..shapes import View
from .fused import Launch

BLOCK = 64  # keys
_SCRATCH = 128 << 20  # bytes of logarithms at a time, unless one head needs more


def _kernels() -> ModuleType:
    from . import strongest_kernels

    return strongest_kernels


def strongest(
    launch: Launch, start: int, stop: int, top: int
) -> tuple[Int32[Tensor, "b h w t"], Float[Tensor, "b h w t"]]:
    """Return the `top` strongest keys of rows start … stop − 1, and their weights; −1 and 0 if missing."""
    b, h = launch.b, launch.h
    n_rows, device = stop - start, launch.lse.device
    key = torch.empty((b, h, n_rows, top), dtype=torch.int32, device=device)
    weight = torch.empty((b, h, n_rows, top), dtype=torch.float32, device=device)
    for begin, power, peak in _powers(launch, start, stop):
        _find(power, peak, key.flatten(0, 1)[begin:], weight.flatten(0, 1)[begin:])
    return key, weight


def find(
    power: Float[Tensor, "n w blocks size"], peak: Float[Tensor, "n w blocks"], top: int
) -> tuple[Int32[Tensor, "n w t"], Float[Tensor, "n w t"]]:
    """Return the `top` strongest keys and their weights; `power`, log2 of the weights, is overwritten."""
    shape = (*power.shape[:2], top)
    key = torch.empty(shape, dtype=torch.int32, device=power.device)
    weight = torch.empty(shape, dtype=torch.float32, device=power.device)
    _find(power, peak, key, weight)
    return key, weight


def _find(power: Tensor, peak: Tensor, key: Tensor, weight: Tensor) -> None:
    n_all, n_blocks, rows_a_program = power.shape[0] * power.shape[1], power.shape[2], 4
    _kernels().strongest[(-(-n_all // rows_a_program),)](
        *(power, peak, key, weight, n_all, n_blocks),
        TOP=key.shape[-1],
        ROWS=rows_a_program,
        BLOCKS=max(2, 1 << (n_blocks - 1).bit_length()),
        BLOCK=BLOCK,
    )


def log_sum_exp(view: View) -> Float[Tensor, "b h q"]:
    """Compute the log-sum-exp of every row, for a call with few rows whose attention returned none."""
    b, h, n_query, _ = view.query.shape
    nothing = torch.zeros((b, h, n_query), dtype=torch.float32, device=view.query.device)
    result = torch.empty_like(nothing).flatten(0, 1)
    for begin, power, peak in _powers(Launch(replace(view, lse=nothing)), 0, n_query):
        high = peak.amax(-1, keepdim=True)  # (heads, q, 1)
        total = (power.flatten(2) - high).exp2_().sum(-1)
        lse = (high[..., 0] + total.log2()) * math.log(2)
        # Padding sees no key and must have weight 0.
        result[begin : begin + len(power)] = lse.nan_to_num(nan=1e30)
    return result.unflatten(0, (b, h))


def _powers(
    launch: Launch, start: int, stop: int
) -> Iterator[tuple[int, Float[Tensor, "n w blocks size"], Float[Tensor, "n w blocks"]]]:
    """Yield log2 of the weights of rows start … stop − 1, and the maximum of each block of keys.

    The heads of all batches are numbered consecutively. Each iteration computes some of the heads, yields the
    number of its first head before the tensors, and overwrites the tensors of the previous iteration.
    """
    view, plan = launch.view, launch.plan
    b, h, n_query, dim = view.query.shape
    n_key, n_rows, device = view.key.shape[2], stop - start, view.query.device
    n_blocks = -(-n_key // BLOCK)
    head_bytes = n_rows * n_blocks * BLOCK * 4  # bytes per head
    at_once = max(1, min(b * h, _SCRATCH // head_bytes))
    shape = (at_once, n_rows, n_blocks)
    power = torch.empty((*shape, BLOCK), dtype=torch.float32, device=device)
    peak = torch.empty(shape, dtype=torch.float32, device=device)
    tile = 16 if n_rows <= 16 or launch.exact else 64
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
            BLOCK=BLOCK,
            MASKED=not launch.ruled,
            EXACT=launch.exact,
        )
        yield begin, power[:heads], peak[:heads]
