"""Compute ‖W_O^h v_j‖: how much the value of key j can write to the residual stream through head h."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakSet

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Factors depend only on the weights: one small QR per head, cached as long as the module exists.
_factors: "WeakKeyDictionary[nn.Module, tuple[int, Tensor]]" = WeakKeyDictionary()
_trusted: "WeakSet[nn.Module]" = WeakSet()


@contextmanager
def trusting(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Return a context that also caches factors of weights without a version counter (inference mode).

    Such weights must not change while the `with` block runs.
    """
    for module in modules:
        if _version(module) < 0:
            _factors.pop(module, None)
            _trusted.add(module)
    try:
        yield
    finally:
        for module in modules:
            _trusted.discard(module)


def versions(modules: Sequence[nn.Module]) -> tuple[int, ...] | None:
    """Return the version counters of the modules' W_O, which grow with changes; None if one is missing."""
    counts = tuple(_version(module) for module in modules)
    return None if min(counts, default=0) < 0 else counts


def _version(module: nn.Module) -> int:
    weight: Tensor = module.o_proj.weight  # type: ignore[union-attr,assignment]
    return -1 if weight.is_inference() else weight._version


def _factor(module: nn.Module, head_dim: int) -> Float[Tensor, "h r d"]:
    """Return R of W_O^h = QR for each head h: ‖W_O^h v‖ = ‖R v‖, with d×d instead of d_model×d numbers."""
    weight: Tensor = module.o_proj.weight  # type: ignore[union-attr,assignment]
    version = _version(module)
    cached = _factors.get(module) if version >= 0 or module in _trusted else None
    if cached is not None and cached[0] == version and cached[1].device == weight.device:
        return cached[1]
    by_head = weight.detach().float().unflatten(1, (-1, head_dim)).transpose(0, 1)  # (h, out, d)
    factor = torch.linalg.qr(by_head, mode="r").R
    _factors[module] = (version, factor)
    return factor


_halves: "WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor, Tensor]]" = WeakKeyDictionary()


def halves(module: nn.Module, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return R (see `_factor`) as two 16-bit tensors that sum to it, for matrix units without other types."""
    factor = _factor(module, head_dim)
    cached = _halves.get(module)
    if cached is None or cached[0] is not factor or cached[1].dtype != dtype:
        high = factor.to(dtype).contiguous()
        cached = (factor, high, (factor - high.float()).to(dtype).contiguous())
        _halves[module] = cached
    return cached[1], cached[2]


def value_norms(module: nn.Module, value: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b h k"]:
    """Compute ‖W_O^h v_j‖ for each head h and key j; grouped heads share values but not W_O."""
    factor = _factor(module, value.shape[-1])  # (h, r, d)
    b, kv, k = value.shape[:3]
    grouped = factor.reshape(kv, -1, factor.shape[-1])  # (kv, h/kv · r, d)
    written = (grouped @ value.float().mT).reshape(b, len(factor), -1, k)  # (b, h, r, k)
    # Keys are last, and `norm` is not used: at 512 keys and 8 heads of 32, a sum over a middle axis takes
    # 30 µs, a norm over the last axis 60 µs, and a norm over a middle axis 860 µs.
    return written.square_().sum(2).sqrt_()
