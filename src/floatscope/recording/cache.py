"""Running sums of a decoding with a KV cache: each forward adds rows, nothing is recomputed.

A causal row never changes once computed, nor does a row of a finished block: what all rows so far gave a
key is what the earlier forwards gave it plus what the new rows give it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import Captured, Columns, LayerStatistics


@dataclass(eq=False)
class RunningSums:
    """Adds what each forward captured to all before it; `add` returns the state of all rows so far.

    Of a model in blocks, the rows of finished blocks settle; those of the block being decided are computed
    again at every step, and are added to the others without being kept.
    """

    _total: dict[int, LayerStatistics] = field(default_factory=dict)
    _prompts: list[int] = field(default_factory=list)

    def add(self, captured: Captured, prompts: Sequence[int]) -> Captured:
        if self._total and list(prompts) != self._prompts:  # some have ended
            at = [self._prompts.index(p) for p in prompts]
            self._total = {layer: _of(one, at) for layer, one in self._total.items()}
        self._prompts = list(prompts)
        whole = self._joined(captured.layers)
        if captured.settled is None:
            self._total = whole
        elif captured.settled:
            self._total = self._joined(captured.settled)
        return replace(captured, layers=whole)

    def _joined(self, new: dict[int, LayerStatistics]) -> dict[int, LayerStatistics]:
        old = self._total
        return {
            layer: _join(old[layer], one) if layer in old else one for layer, one in new.items()
        }


def _of(stats: LayerStatistics, prompts: list[int]) -> LayerStatistics:
    """The same for some prompts of the batch."""
    values: dict[str, Any] = {f.name: getattr(stats, f.name) for f in fields(stats)}
    some: dict[str, Any] = {name: v[prompts] for name, v in values.items() if isinstance(v, Tensor)}
    columns = stats.columns
    if columns is not None:
        parts = {f.name: getattr(columns, f.name)[prompts] for f in fields(columns)}
        some["columns"] = Columns(**parts)
    return replace(stats, **some)


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
    wide, both = new.clone(), min(old.shape[-1], new.shape[-1])
    wide[..., :both] += old[..., :both]  # a prompt that had come further may have ended
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


def placed(captured: Captured, fresh: Bool[Tensor, "b k"], rows: slice) -> Captured:
    """With an approximate cache: what belongs to single rows, at its place; NaN at those left out."""
    own = ("entropy", "value_norm", "residual_norm", "massive", "massive_channel")
    names = (*own, "expert", "expert_weight")

    def wide(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        nothing = torch.nan if part.is_floating_point() else -1
        whole = part.new_full((*part.shape[:-1], fresh.shape[1]), nothing)
        whole[..., rows] = part
        out = ~fresh.to(part.device)
        hidden = out if part.dim() == 2 else out[:, None]
        return whole.masked_fill(hidden, nothing)

    def at_place(one: LayerStatistics) -> LayerStatistics:
        by_row: dict[str, Any] = {name: wide(getattr(one, name)) for name in names}
        return replace(one, **by_row)

    return replace(captured, layers={n: at_place(one) for n, one in captured.layers.items()})
