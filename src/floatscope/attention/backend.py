"""Which way a view's statistics are computed: decided here and nowhere else.

Where the tensors are on a GPU, the kernels of `gpu`; where these do not apply, the blocks of `cpu`
(which run on any device), with one notice per reason. Both give the same numbers.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..models import attention_hook
from .cpu import blocked, closed_form, norms
from .gpu import few, fused, vectors
from .gpu import strongest as peaks
from .overhear import FEW, Overhear, OverhearOnCPU
from .shapes import Arrays, View

T = TypeVar("T")


def on_gpu(tensor: Tensor) -> bool:
    """The tensor is where kernels run."""
    return tensor.is_cuda


def overhearing(call: attention_hook.Call) -> Overhear | OverhearOnCPU:
    """To be entered around stock attention; then it has the log-sum-exp."""
    plain = call.query.is_cpu and not on_gpu(call.query)
    return OverhearOnCPU(call) if plain else Overhear()


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Arrays:
    """Column sums by query group; on request row entropy, region sums, and the rollout's step."""
    if view.few is not None and view.few.labels is view.labels:
        asked = {"column_sum": True, "rolled": True, "entropy": entropy, "region_sum": regions}
        return {name: one for name, one in view.few.arrays.items() if asked.get(name)}
    result = _by_kernels(view, lambda: fused.sums(view, entropy=entropy, regions=regions))
    return blocked.sums(view, entropy=entropy, regions=regions) if result is None else result


def strongest(
    view: View, rows: tuple[int, int], top: int
) -> tuple[Int[Tensor, "b h w t"], Float[Tensor, "b h w t"]] | None:
    """Keys and weights of some rows, the strongest first; None where the rows must be held instead."""
    if view.few is not None:
        return few.strongest(view.few, *rows, top)
    return _by_kernels(view, lambda: peaks.strongest(fused.Launch(view), *rows, top))


def with_lse(view: View, attend: Callable[[], object] | None = None, columns: bool = False) -> View:
    """The view with its log-sum-exp, if kernels want one that attention's forward did not give.

    For few queries it is computed, and the sums with it, on request `columns` too; for many it comes with
    attention itself, if `attend` runs that.
    """
    if not on_gpu(view.query) or fused.unfit(view, without_lse=True):
        return view
    if view.query.shape[2] < FEW:
        found = None
        if few.fits(view):
            found = _by_kernels(view, lambda: few.measured(view, columns), without_lse=True)
        if found is not None:
            return found
    if view.lse is not None:
        return view
    if view.query.shape[2] < FEW:
        lse = _by_kernels(view, lambda: peaks.log_sum_exp(view), without_lse=True)
        return replace(view, lse=lse)
    if attend is None:
        return view
    with Overhear() as ear:
        attend()
    return replace(view, lse=ear.lse(view.query))


def columns(view: View) -> Arrays:
    """Score, cosine and norms of each key: what needs q and k alone."""
    if view.few is not None and view.few.labels is view.labels and "score" in view.few.arrays:
        return {name: view.few.arrays[name] for name in (*vectors.KEY_ARRAYS, "viewers")}
    kernels = _kernels_at(view.query) and view.visible.reach is None  # these know no window
    return vectors.columns(view) if kernels else closed_form.columns(view)


def value_norms(module: nn.Module, value: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b h k"]:
    """‖W_O v‖ of each head and key."""
    return (vectors if _kernels_at(value) else norms).value_norms(module, value)


def region_totals(
    from_region: Float[Tensor, "b q f"], by_row: Float[Tensor, "b h q r"]
) -> Float[Tensor, "b h f r"]:
    """Summed over the rows of each region."""
    if by_row.shape[2] == 1:
        return from_region[:, :, :, None] * by_row
    if _kernels_at(by_row):
        return vectors.region_totals(from_region, by_row)
    if by_row.shape[1] == 1:
        return from_region.mT[:, None] @ by_row
    return torch.einsum("bqf,bhqr->bhfr", from_region, by_row)


def vector_norms(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    if _kernels_at(x):
        return vectors.norms_of(x)
    wide = torch.promote_types(x.dtype, torch.float32)  # a norm may not narrow
    return torch.linalg.vector_norm(x, dim=-1, dtype=wide).float()


def _kernels_at(tensor: Tensor) -> bool:
    return on_gpu(tensor) and fused.installed()


def _by_kernels(view: View, launch: Callable[[], T], without_lse: bool = False) -> T | None:
    """What kernels give; None where the view is not on a GPU, or they cannot take it."""
    if not on_gpu(view.query):
        return None
    reason = fused.unfit(view, without_lse)
    if reason is None:
        from triton.runtime.errors import OutOfResources

        try:
            return launch()
        except OutOfResources as error:
            reason = f"the kernel does not fit this GPU ({error})"
    _notice(reason)
    return None


@cache
def _notice(reason: str) -> None:
    warnings.warn(f"statistics take the slower path: {reason}", stacklevel=5)
