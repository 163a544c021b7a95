"""Chooses the attention kernel for training by timing the candidates on the plan's shapes.

Both give the same numbers to rounding; a candidate that does not, or that fails, is not chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.data import Plan
from training.model import Model


def _only(name: str) -> None:
    torch.backends.cuda.enable_flash_sdp(name in ("flash", "all"))
    torch.backends.cuda.enable_cudnn_sdp(name in ("cudnn", "all"))
    torch.backends.cuda.enable_mem_efficient_sdp(name in ("all", "math"))
    torch.backends.cuda.enable_math_sdp(name in ("all", "math"))


def _inputs(model: Model, rows: int, length: int) -> list[torch.Tensor]:
    c = model.config
    shape = rows, length, c.heads, c.head_dim
    return [torch.randn(shape, device="cuda", dtype=model.dtype).requires_grad_() for _ in range(3)]


def _run(x: list[torch.Tensor], causal: bool) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in x)  # (rows, heads, length, head_dim)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    out.sum().backward()
    return out


def _milliseconds(model: Model, rows: int, length: int) -> float:
    x = _inputs(model, rows, length)
    for _ in range(3):
        _run(x, model.causal)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        _run(x, model.causal)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 10


def choose_attention(wish: str, model: Model, plan: Plan) -> str:
    """Switch on the fastest sound kernel (or the one wished for); say what was found."""
    found: dict[str, float] = {}
    for name in ("flash", "cudnn") if wish == "auto" else (wish,):
        try:
            _only("math")
            x = _inputs(model, 2, 128)
            want = _run(x, model.causal).float()
            _only(name)
            error = (_run(x, model.causal).float() - want).norm() / want.norm()
            if not error < 2e-2:
                print(f"attention {name}: off by {float(error):.3g}, not used")
                continue
            found[name] = sum(
                share * _milliseconds(model, plan.tokens // length, length)
                for length, share in plan.buckets
            )
        except RuntimeError as problem:
            print(f"attention {name}: {str(problem).splitlines()[0]}")
    if not found:
        _only("all")
        return "attention: PyTorch's own choice"
    best = min(found, key=found.__getitem__)
    _only(best)
    times = ", ".join(f"{k} {v:.2f} ms" for k, v in found.items())
    return f"attention: {best} ({times} a layer, forward and backward)"


@contextmanager
def any_shape() -> Iterator[None]:
    """For probes and evaluation: padding masks, and shapes that change from call to call.

    Flash takes no mask, and cuDNN plans anew for every shape: neither alone will do.
    """
    if not torch.cuda.is_available():
        yield
        return
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield
