"""Overhear the log-sum-exp that stock attention computes anyway.

SDPA's kernels return it beside the output, and the public function drops it. A dispatch mode around
the stock call sees the kernel's result: nothing is computed twice and the output is the stock one,
bit for bit. Two kernels keep the log-sum-exp only if told to; the mode tells them, which changes
nothing else, except for few queries: cuDNN then has a faster kernel without it, whose last bits
differ. Both are left alone there. Where a kernel has none, the statistics compute their own.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Kernels whose fifth argument says whether the log-sum-exp is kept: off when nothing is trained.
_TOLD = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)
FEW = 64  # queries


class Overhear(TorchDispatchMode):
    """`with Overhear() as ear:` around an SDPA call; then `ear.lse(...)`."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: Tensor | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.scaled_dot_product_attention.default:
            # In inference mode the composite function arrives whole: let it pick its kernel.
            with self:
                return func.decompose(*args, **kwargs)
        if func in _TOLD and args[0].shape[2] >= FEW:
            args = (*args[:4], True, *args[5:])
        result = func(*args, **kwargs)
        heard = "scaled_dot_product" in func.__name__ and "math" not in func.__name__
        if heard and isinstance(result, tuple | list):  # of math's the second is the weights
            self._heard = result[1]
        return result

    def lse(self, query: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q"] | None:
        """The log-sum-exp of every row, or None if the kernel gave none of that shape."""
        heard = self._heard
        if heard is None or not isinstance(heard, torch.Tensor) or not heard.numel():
            return None
        heard = heard.squeeze(-1) if heard.ndim == 4 else heard
        b, h, q = query.shape[:3]
        heads = heard.shape[1]
        if (
            heard.ndim == 3 and heads < h and not h % heads
        ):  # those that share keys, as further rows
            heard = heard[..., : q * (h // heads)].reshape(b, h, -1)
        if heard.shape[-1] > q:  # one kernel rounds the number of rows up
            heard = heard[..., :q]
        return heard.float() if heard.shape == query.shape[:3] else None
