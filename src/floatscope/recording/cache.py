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

    total: dict[int, LayerStatistics] = field(default_factory=dict)
    prompts: list[int] = field(default_factory=list)

    def add(self, captured: Captured, prompts: Sequence[int]) -> Captured:
        self.only(prompts)
        whole = self._joined(captured.layers)
        if captured.settled is None:
            self.total = whole
        elif captured.settled:
            self.total = self._joined(captured.settled)
        return replace(captured, layers=whole)

    def only(self, prompts: Sequence[int]) -> None:
        """The others have ended."""
        if self.total and list(prompts) != self.prompts:
            at = [self.prompts.index(p) for p in prompts]
            self.total = {layer: _of(one, at) for layer, one in self.total.items()}
        self.prompts = list(prompts)

    def _joined(self, new: dict[int, LayerStatistics]) -> dict[int, LayerStatistics]:
        old = self.total
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


SUMMED = ("column_sum", "flow_sum", "rollout_sum")  # over rows
BY_ROW = (
    *("entropy", "value_norm", "residual_norm", "massive", "massive_channel"),
    *("key_drift", "value_drift", "expert", "expert_weight"),
)


def _join(old: LayerStatistics, new: LayerStatistics) -> LayerStatistics:
    """The new ones, which nobody else holds, with the old ones added; the rows kept whole and the
    predictions are the new ones'."""
    for name in SUMMED:
        _grow(getattr(old, name), getattr(new, name))
    for name in BY_ROW:
        before, now = getattr(old, name), getattr(new, name)
        if before is not None and now is not None:
            setattr(new, name, torch.cat([before, now], dim=-1))
    if old.columns is not None and new.columns is not None:
        summed: dict[str, Any] = {}
        for f in fields(Columns):
            if f.name != "key_norm":  # a key's own, and already over all keys
                # Not in place: layers may share the number of viewers.
                summed[f.name] = getattr(new.columns, f.name).clone()
                _grow(getattr(old.columns, f.name), summed[f.name])
        new.columns = replace(new.columns, **summed)
    return new


def _grow(old: Tensor | None, new: Tensor | None) -> None:
    """Old keys and new ones: earlier rows gave the new keys nothing."""
    if old is not None and new is not None:
        both = min(old.shape[-1], new.shape[-1])  # a prompt that had come further may have ended
        new[..., :both] += old[..., :both]


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
