"""K/V drift: how far keys and values have turned since the forward before.

The one statistic that needs two forwards: each layer's keys and values stay on the device until the
next, as much memory as a KV cache. With such a cache nothing turns, and there is nothing to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(eq=False)
class Before:
    """Keys and values of the forward before, by layer, and whose they are."""

    _held: dict[int, tuple[tuple[int, ...], Tensor, Tensor]] = field(default_factory=dict)

    def drift(
        self,
        layer: int,
        prompts: Sequence[int],
        key: Float[Tensor, "b kv k d"],
        value: Float[Tensor, "b kv k d"],
    ) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]:
        """1 − cos of each key and value with its own before, as means over heads; NaN at first."""
        before = self._held.get(layer)
        self._held[layer] = (tuple(prompts), key, value)
        if before is None:
            nothing = torch.full((len(key), key.shape[2]), torch.nan, device=key.device)
            return nothing, nothing
        # Prompts that have ended are no longer there; the others are in order.
        who, old_key, old_value = before
        same = [who.index(p) for p in prompts] if prompts else slice(None)
        return _drift(old_key[same], key), _drift(old_value[same], value)


def _drift(old: Float[Tensor, "b kv _ d"], new: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b k"]:
    """NaN for keys that were not there yet: a model in blocks has more of them block by block."""
    both = min(old.shape[2], new.shape[2])
    found = turned(old[:, :, :both], new[:, :, :both])
    return torch.nn.functional.pad(found, (0, new.shape[2] - both), value=torch.nan)


def turned(a: Float[Tensor, "b kv k d"], b: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b k"]:
    """1 − cos = ½‖â − b̂‖²: to the last digit also where hardly anything turned."""
    wide = torch.promote_types(a.dtype, torch.float32)
    unit = [torch.nn.functional.normalize(x.to(wide), dim=-1) for x in (a, b)]
    return ((unit[0] - unit[1]).square().sum(-1) / 2).mean(1).float()
