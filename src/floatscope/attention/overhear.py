"""Capture the log-sum-exp that stock attention computes anyway.

SDPA's kernels return it beside the output, and the public function drops it. A dispatch mode around the stock
call sees the kernel's result; the output is the stock one, bit for bit. Two kernels keep the log-sum-exp only
if told to, and the mode tells them, except for few queries: cuDNN then has a faster kernel without it, whose
last bits differ. Where a kernel has none, the statistics compute their own.

On a CPU a dispatch mode costs more than a short call of the one kernel. There, `OverhearOnCPU` has
transformers' own function call `attend` in place of SDPA, which calls the kernel as SDPA does.
"""

import threading
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..models import attention_hook

# Kernels whose fifth argument says whether the log-sum-exp is kept: off when nothing is trained.
_TOLD = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)
FEW = 64  # queries


class Overhear(TorchDispatchMode):
    """A context around an SDPA call that keeps its log-sum-exp: `with Overhear() as ear: …; ear.lse(...)`."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        """Return the log-sum-exp of every row, or None if the kernel returned none of that shape."""
        heard = self._heard
        if heard is None or not isinstance(heard, torch.Tensor) or not heard.numel():
            return None
        heard = heard.squeeze(-1) if heard.ndim == 4 else heard
        b, h, q = query.shape[:3]
        heads = heard.shape[1]
        if (
            heard.ndim == 3 and heads < h and not h % heads
        ):  # heads that share keys, as further rows
            heard = heard[..., : q * (h // heads)].reshape(b, h, -1)
        if heard.shape[-1] > q:  # one kernel rounds the number of rows up
            heard = heard[..., :q]
        return heard.float() if heard.shape == query.shape[:3] else None


_SDPA = torch.nn.functional.scaled_dot_product_attention
_choice: Any = torch._fused_sdp_choice
_FLASH = 1  # what it says where SDPA takes its kernel, and not plain arithmetic
_flash: Any = torch._scaled_dot_product_flash_attention_for_cpu
_heard = threading.local()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Any:
    """Compute SDPA by its own steps, and keep the log-sum-exp of the kernel for this thread."""
    how = (dropout_p, is_causal)
    if not query.is_cpu or _choice(query, key, value, attn_mask, *how, **named) != _FLASH:
        return _SDPA(query, key, value, attn_mask, *how, **named)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = torch.full((), -torch.inf, dtype=query.dtype)
        attn_mask = torch.where(attn_mask, 0.0, hidden)
    scale = named.get("scale")
    output, _heard.lse = _flash(query, key, value, *how, attn_mask=attn_mask, scale=scale)
    return output


class _Instead:
    """A module in which some names are replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _listening(stock: FunctionType) -> FunctionType:
    """Copy a function so that `torch.nn.functional.scaled_dot_product_attention` means `attend` in it."""
    functional = _Instead(torch.nn.functional, scaled_dot_product_attention=attend)
    instead = {"torch": _Instead(torch, nn=_Instead(torch.nn, functional=functional))}
    same = (stock.__name__, stock.__defaults__, stock.__closure__)
    made = FunctionType(stock.__code__, {**stock.__globals__, **instead}, *same)
    made.__kwdefaults__ = stock.__kwdefaults__
    return made


_LISTENING = _listening(attention_hook.sdpa_attention_forward)


class OverhearOnCPU:
    """`Overhear` for a CPU, without a dispatch mode, which costs 15 to 35 µs a call."""

    def __init__(self, call: attention_hook.Call) -> None:
        self._call = call

    def __enter__(self) -> "OverhearOnCPU":
        _heard.lse = None
        self._call.attention = _LISTENING
        return self

    def __exit__(self, *exc: object) -> None:
        self._call.attention = None

    def lse(self, query: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q"] | None:
        """Return the log-sum-exp of every row, or None if there is none of that shape. Can be called once."""
        heard: Tensor | None = _heard.lse
        _heard.lse = None
        return heard.float() if heard is not None and heard.shape == query.shape[:3] else None
