"""Capture the log-sum-exp that stock attention computes.

The kernels of SDPA return the log-sum-exp with the output, but the public function drops it. A dispatch mode
around the stock call reads the log-sum-exp from the kernel's result; the output is that of stock attention,
bit for bit. Two kernels return the log-sum-exp only on request. The mode makes this request, except for few
queries: for these, cuDNN has a faster kernel without log-sum-exp, whose output differs in the last bits. If a
kernel returns no log-sum-exp, the code that computes the statistics also computes the log-sum-exp.

On a CPU, SDPA has only one kernel, and a dispatch mode takes more time than a short call of this kernel.
`CpuLseCapture` therefore makes the attention function of transformers call `attend` instead of SDPA; `attend`
calls the kernel in the same way as SDPA.
"""

import threading
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..models import attention_hook

# Kernels whose fifth argument requests the log-sum-exp, which is off during inference.
_LSE_ON_REQUEST = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)
FEW = 64  # queries


class LseCapture(TorchDispatchMode):
    """Context manager that keeps the log-sum-exp of the SDPA call in its `with` block.

    Example: `with LseCapture() as captured: sdpa(query, …); lse = captured.lse(query)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._captured: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.scaled_dot_product_attention.default:
            # In inference mode the composite function is dispatched: decompose it into its kernel.
            with self:
                return func.decompose(*args, **kwargs)
        if func in _LSE_ON_REQUEST and args[0].shape[2] >= FEW:
            args = (*args[:4], True, *args[5:])
        result = func(*args, **kwargs)
        returns_lse = "scaled_dot_product" in func.__name__ and "math" not in func.__name__
        # the math kernel returns weights instead of a log-sum-exp
        if returns_lse and isinstance(result, tuple | list):
            self._captured = result[1]
        return result

    def lse(self, query: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q"] | None:
        """Return the log-sum-exp of every row, or None if the kernel returned none of that shape."""
        lse = self._captured
        if lse is None or not isinstance(lse, torch.Tensor) or not lse.numel():
            return None
        lse = lse.squeeze(-1) if lse.ndim == 4 else lse
        b, h, q = query.shape[:3]
        heads = lse.shape[1]
        # heads that share keys are returned as rows
        if lse.ndim == 3 and heads < h and not h % heads:
            lse = lse[..., : q * (h // heads)].reshape(b, h, -1)
        if lse.shape[-1] > q:  # one kernel rounds the number of rows up
            lse = lse[..., :q]
        return lse.float() if lse.shape == query.shape[:3] else None


_SDPA = torch.nn.functional.scaled_dot_product_attention
_choice: Any = torch._fused_sdp_choice
_FLASH = 1  # the choice of the fused kernel, not of plain arithmetic
_flash: Any = torch._scaled_dot_product_flash_attention_for_cpu
_captured = threading.local()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Any:
    """Compute SDPA and keep the kernel's log-sum-exp for this thread."""
    how = (dropout_p, is_causal)
    if not query.is_cpu or _choice(query, key, value, attn_mask, *how, **named) != _FLASH:
        return _SDPA(query, key, value, attn_mask, *how, **named)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = torch.full((), -torch.inf, dtype=query.dtype)
        attn_mask = torch.where(attn_mask, 0.0, hidden)
    scale = named.get("scale")
    output, _captured.lse = _flash(query, key, value, *how, attn_mask=attn_mask, scale=scale)
    return output


class _PatchedModule:
    """Proxy of a module in which some names are replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _with_attend(stock: FunctionType) -> FunctionType:
    """Return a copy of a function in which `torch.nn.functional.scaled_dot_product_attention` is `attend`."""
    functional = _PatchedModule(torch.nn.functional, scaled_dot_product_attention=attend)
    instead = {"torch": _PatchedModule(torch, nn=_PatchedModule(torch.nn, functional=functional))}
    attributes = (stock.__name__, stock.__defaults__, stock.__closure__)
    copy = FunctionType(stock.__code__, {**stock.__globals__, **instead}, *attributes)
    copy.__kwdefaults__ = stock.__kwdefaults__
    return copy


_ATTENTION_FORWARD = _with_attend(attention_hook.sdpa_attention_forward)


class CpuLseCapture:
    """Replacement for `LseCapture` on a CPU, without a dispatch mode, which takes 15 to 35 µs per call."""

    def __init__(self, call: attention_hook.Call) -> None:
        self._call = call

    def __enter__(self) -> "CpuLseCapture":
        _captured.lse = None
        self._call.attention = _ATTENTION_FORWARD
        return self

    def __exit__(self, *exc: object) -> None:
        self._call.attention = None

    def lse(self, query: Float[Tensor, "b h q d"]) -> Float[Tensor, "b h q"] | None:
        """Return the log-sum-exp of every row, or None if none has that shape. Call only once."""
        lse: Tensor | None = _captured.lse
        _captured.lse = None
        return lse.float() if lse is not None and lse.shape == query.shape[:3] else None
