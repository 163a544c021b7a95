"""Compute statistics without attention weights: massive activations, chosen experts, key/value drift."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Heads = Float[Tensor, "b kv k d"]  # keys or values of one layer


def massive(x: Float[Tensor, "b n d"]) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Return max |x| / median |x| over each position's channels, and the largest channel; ∞ for median 0."""
    ratios, channels = [], []
    middle = x.shape[-1] // 2
    for prompt in x:  # one at a time: sorting needs three times the memory
        size = prompt.to(torch.promote_types(x.dtype, torch.float32)).abs()
        best = size.max(-1)
        ordered = size.sort(-1).values
        low = ordered[:, middle] if x.shape[-1] % 2 else ordered[:, middle - 1]
        ratios.append(best.values / ((low + ordered[:, middle]) / 2))
        channels.append(best.indices)
    return torch.stack(ratios).float(), torch.stack(channels)


def routed_experts(output: Any, batch: int) -> tuple[Int[Tensor, "b c q"], Float[Tensor, "b c q"]]:
    """Return the experts that a router chose for each position, strongest first, and their weights.

    The routers of transformers return (logits, weights, experts) for all tokens of a batch; the experts are
    not sorted.
    """
    _, weight, expert = output  # (b·q, c) each
    order = weight.argsort(dim=-1, descending=True, stable=True)
    expert, weight = (x.gather(-1, order).unflatten(0, (batch, -1)) for x in (expert, weight))
    return expert.mT, weight.mT.float()


@dataclass(eq=False)
class KVDrift:
    """Keys and values of the previous forward by layer, for comparison with those of the next forward.

    The keys and values stay on the device and need as much memory as a KV cache.
    """

    _previous: dict[int, tuple[tuple[int, ...], Tensor, Tensor]] = field(default_factory=dict)

    def update(
        self, layer: int, prompts: Sequence[int], key: Heads, value: Heads
    ) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]:
        """Return 1 − cos of each key and value to those of the previous forward, averaged over heads.

        The values for the first forward are NaN.
        """
        previous = self._previous.get(layer)
        self._previous[layer] = (tuple(prompts), key, value)
        if previous is None:
            missing = torch.full((len(key), key.shape[2]), torch.nan, device=key.device)
            return missing, missing
        # Prompts that have ended are missing from this forward; the others keep their order.
        old_prompts, old_key, old_value = previous
        rows = [old_prompts.index(p) for p in prompts] if prompts else slice(None)
        return _drift(old_key[rows], key), _drift(old_value[rows], value)


def _drift(old: Float[Tensor, "b kv _ d"], new: Float[Tensor, "b kv k d"]) -> Float[Tensor, "b k"]:
    """Return the cosine distance of shared columns; NaN for keys missing in the previous forward."""
    shared = min(old.shape[2], new.shape[2])
    distance = cosine_distance(old[:, :, :shared], new[:, :, :shared])
    return torch.nn.functional.pad(distance, (0, new.shape[2] - shared), value=torch.nan)


def cosine_distance(a: Heads, b: Heads) -> Float[Tensor, "b k"]:
    """Return 1 − cos, mean over heads, as ½‖â − b̂‖², which is accurate for nearly equal vectors too."""
    wide = torch.promote_types(a.dtype, torch.float32)
    unit = [torch.nn.functional.normalize(x.to(wide), dim=-1) for x in (a, b)]
    return ((unit[0] - unit[1]).square().sum(-1) / 2).mean(1).float()
