"""‖W_O^h v_j‖: how much a key's value can write into the residual, head by head."""

from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

# The factor depends on the weights alone: one small QR per head, kept as long as the module lives.
_factors: "WeakKeyDictionary[nn.Module, tuple[int, Tensor]]" = WeakKeyDictionary()


def _factor(module: nn.Module, head_dim: int) -> Float[Tensor, "h r d"]:
    """R of W_O^h = QR: ‖W_O^h v‖ = ‖R v‖ with d×d instead of d_model×d."""
    weight: Tensor = module.o_proj.weight  # type: ignore[union-attr,assignment]
    # A weight made in inference mode counts no changes: nothing can be kept of it.
    version = -1 if weight.is_inference() else weight._version
    known = _factors.get(module) if version >= 0 else None
    if known is not None and known[0] == version and known[1].device == weight.device:
        return known[1]
    by_head = weight.detach().float().unflatten(1, (-1, head_dim)).transpose(0, 1)  # (h, out, d)
    factor = torch.linalg.qr(by_head, mode="r").R
    _factors[module] = (version, factor)
    return factor


_halves: "WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor, Tensor]]" = WeakKeyDictionary()


def halves(module: nn.Module, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The factor as a sum of two tensors of a 16-bit type, for matrix units that take no other."""
    factor = _factor(module, head_dim)
    known = _halves.get(module)
    if known is None or known[0] is not factor or known[1].dtype != dtype:
        high = factor.to(dtype).contiguous()
        known = (factor, high, (factor - high.float()).to(dtype).contiguous())
        _halves[module] = known
    return known[1], known[2]


def value_norms(module: nn.Module, value: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b h k"]:
    """One number per head and key; grouped heads share values but not W_O."""
    factor = _factor(module, value.shape[-1])  # (h, r, d)
    b, kv, k = value.shape[:3]
    grouped = factor.unflatten(0, (kv, -1))  # (kv, h/kv, r, d)
    written = value.float()[:, :, None] @ grouped.mT  # (b, kv, h/kv, k, r)
    return written.norm(dim=-1).reshape(b, -1, k)
