"""Choose the implementation that computes the statistics of a view, on a CPU or a GPU.

No other module makes this choice. The kernels of `gpu` compute views whose tensors are on a GPU. `cpu`, which
runs on any device, computes all other views in blocks; if the kernels do not support a view on a GPU, one
warning is given per reason. Both packages give the same numbers.
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
from .lse_capture import FEW, CpuLseCapture, LseCapture
from .shapes import Arrays, View

T = TypeVar("T")


def on_gpu(tensor: Tensor) -> bool:
    """Return whether the tensor is on a device that runs the kernels."""
    return tensor.is_cuda


def capture_lse(call: attention_hook.Call) -> LseCapture | CpuLseCapture:
    """Return a context manager that keeps the log-sum-exp of a stock attention call."""
    plain = call.query.is_cpu and not on_gpu(call.query)
    return CpuLseCapture(call) if plain else LseCapture()


def sums(view: View, *, entropy: bool = True, regions: bool = True) -> Arrays:
    """Compute column sums by query group, row entropies, region sums and the product of weights and state.

    `entropy` and `regions` say whether to include row entropies and region sums. The product, which the
    rollout uses, is averaged over heads and is included if the view has a `state`.
    """
    if view.few_sums is not None and view.few_sums.labels is view.labels:
        include = {"column_sum": True, "rolled": True, "entropy": entropy, "region_sum": regions}
        return {name: array for name, array in view.few_sums.arrays.items() if include.get(name)}
    result = _by_kernels(view, lambda: fused.sums(view, entropy=entropy, regions=regions))
    return blocked.sums(view, entropy=entropy, regions=regions) if result is None else result


def strongest(
    view: View, rows: tuple[int, int], top: int
) -> tuple[Int[Tensor, "b h w t"], Float[Tensor, "b h w t"]] | None:
    """Return the `top` strongest keys of rows start … stop − 1, and their weights; None without kernels.

    `rows` is (start, stop). The result is None if the kernels do not support the view.
    """
    if view.few_sums is not None:
        return few.strongest(view.few_sums, *rows, top)
    return _by_kernels(view, lambda: peaks.strongest(fused.Launch(view), *rows, top))


def with_lse(view: View, attend: Callable[[], object] | None = None, columns: bool = False) -> View:
    """Return the view with its log-sum-exp, computed if the kernels need it and attention returned none.

    For few queries, this function computes the log-sum-exp, together with the sums and, if `columns` is true,
    the statistics by key. For many queries, the log-sum-exp comes from a call of `attend`, which runs the
    attention, if `attend` is given.
    """
    if not on_gpu(view.query) or fused.unfit(view, without_lse=True):
        return view
    if view.query.shape[2] < FEW:
        measured = None
        if few.fits(view):
            measured = _by_kernels(view, lambda: few.measured(view, columns), without_lse=True)
        if measured is not None:
            return measured
    if view.lse is not None:
        return view
    if view.query.shape[2] < FEW:
        lse = _by_kernels(view, lambda: peaks.log_sum_exp(view), without_lse=True)
        return replace(view, lse=lse)
    if attend is None:
        return view
    with LseCapture() as captured:
        attend()
    return replace(view, lse=captured.lse(view.query))


def columns(view: View) -> Arrays:
    """Compute score, cosine and norms of each key, which need only q and k."""
    sums = view.few_sums
    if sums is not None and sums.labels is view.labels and "score" in sums.arrays:
        return {name: sums.arrays[name] for name in (*vectors.KEY_ARRAYS, "viewers")}
    # these kernels do not support windows
    kernels = _kernels_at(view.query) and view.visible.reach is None
    return vectors.columns(view) if kernels else closed_form.columns(view)


def value_norms(module: nn.Module, value: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b h k"]:
    """Compute ‖W_O v‖ for each head and key."""
    return (vectors if _kernels_at(value) else norms).value_norms(module, value)


def region_totals(
    from_region: Float[Tensor, "b q f"], by_row: Float[Tensor, "b h q r"]
) -> Float[Tensor, "b h f r"]:
    """Sum `by_row` over the rows of each region; `from_region` is the indicator of each row's region."""
    if by_row.shape[2] == 1:
        return from_region[:, :, :, None] * by_row
    if _kernels_at(by_row):
        return vectors.region_totals(from_region, by_row)
    if by_row.shape[1] == 1:
        return from_region.mT[:, None] @ by_row
    return torch.einsum("bqf,bhqr->bhfr", from_region, by_row)


def vector_norms(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """Compute the norm of each vector."""
    if _kernels_at(x):
        return vectors.norms_of(x)
    wide = torch.promote_types(x.dtype, torch.float32)  # norms keep float32
    return torch.linalg.vector_norm(x, dim=-1, dtype=wide).float()


def _kernels_at(tensor: Tensor) -> bool:
    return on_gpu(tensor) and fused.installed()


def _by_kernels(view: View, launch: Callable[[], T], without_lse: bool = False) -> T | None:
    """Return the kernels' result; None if the view is not on a GPU or the kernels cannot handle it."""
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
