"""Running sums of a decoding with a KV cache: each forward adds rows, nothing is recomputed.

A causal row never changes once computed, so what all rows so far gave a key is what the earlier
forwards gave it plus what the new rows give it.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..attention import Captured, Columns, LayerStatistics


@dataclass(eq=False)
class RunningSums:
    """Adds what each forward captured to all before it; `add` returns the state of all rows so far."""

    _total: dict[int, LayerStatistics] = field(default_factory=dict)

    def add(self, captured: Captured) -> Captured:
        for layer, new in captured.layers.items():
            old = self._total.get(layer)
            self._total[layer] = new if old is None else _join(old, new)
        return replace(captured, layers=self._total)


def _join(old: LayerStatistics, new: LayerStatistics) -> LayerStatistics:
    return replace(
        new,  # the rows kept whole and the predictions are the new ones
        column_sum=_grow(old.column_sum, new.column_sum),
        entropy=_append(old.entropy, new.entropy),
        flow_sum=_grow(old.flow_sum, new.flow_sum),
        rollout_sum=_grow(old.rollout_sum, new.rollout_sum),
        columns=None if new.columns is None else _columns(old.columns, new.columns),
        value_norm=_append(old.value_norm, new.value_norm),
        residual_norm=_append(old.residual_norm, new.residual_norm),
        massive=_append(old.massive, new.massive),
        massive_channel=_append(old.massive_channel, new.massive_channel),
        key_drift=_append(old.key_drift, new.key_drift),
        value_drift=_append(old.value_drift, new.value_drift),
        expert=_append(old.expert, new.expert),
        expert_weight=_append(old.expert_weight, new.expert_weight),
    )


def _grow(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Old keys and new ones: earlier rows gave the new keys nothing."""
    if old is None or new is None:
        return new
    wide = new.clone()
    wide[..., : old.shape[-1]] += old
    return wide


def _append(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return new if old is None or new is None else torch.cat([old, new], dim=-1)


def _columns(old: Columns | None, new: Columns) -> Columns:
    if old is None:
        return new
    summed: dict[str, Any] = {
        f.name: _grow(getattr(old, f.name), getattr(new, f.name))
        for f in fields(Columns)
        if f.name != "key_norm"  # a key's own, and already over all keys
    }
    return replace(new, **summed)
