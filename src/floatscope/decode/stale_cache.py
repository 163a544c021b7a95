"""Approximate caches for bidirectional models, which reuse keys and values of earlier steps.

In a bidirectional model a change of any token may change every key, so these caches are not exact. A trace
records which keys of a step are stale. There are three published rules, applied to each prompt separately:

- "prefix" (Fast-dLLM, 2505.22618): the first step of a block computes all columns; later steps compute the
  block and all columns after the block.
- "dual" (Fast-dLLM): the first step of a block computes all columns; later steps compute only the block.
- "dkv" (dKV-Cache, 2505.15781): a token is computed once more in the step after it is revealed, and is
  then cached; the first two steps of a block and every n-th step compute all columns.

A model with right-shifted logits also computes the row before the block, which predicts its first
position.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import DynamicCache

from ..models import Model
from .blocks import Span
from .placed_cache import Columns, PlacedCache

EVERY = 4  # default number of steps between refreshes of "dkv"; "dkv:8" sets it


class Stored(PlacedCache):
    """Keys and values of all columns. A forward replaces the columns in `fresh`; None is all columns."""

    def __init__(self, model: Model) -> None:
        super().__init__(config=model.net.config)
        self.fresh: Bool[Tensor, "b k"] | None = None  # None: all
        self.first = 0  # column of the forward's first row

    def place(self, layer: int, key: Tensor, value: Tensor) -> tuple[Columns, Columns]:
        stored = self.layers[layer] if layer < len(self.layers) else None
        if stored is None or not stored.is_initialized:
            return DynamicCache.update(self, key, value, layer)
        if self.fresh is None:
            stored.keys, stored.values = key, value
            return key, value
        rows = slice(self.first, self.first + key.shape[2])
        new = self.fresh[:, None, rows, None]
        # Not in place, because an observer may still refer to the earlier tensor.
        stored.keys, stored.values = (
            torch.cat(
                [
                    old[:, :, : rows.start],
                    torch.where(new, latest, old[:, :, rows]),
                    old[:, :, rows.stop :],
                ],
                2,
            )
            for old, latest in ((stored.keys, key), (stored.values, value))
        )
        return stored.keys, stored.values


class StaleCache:
    """An approximate cache, and the rule that determines which columns are computed at every step."""

    def __init__(self, model: Model, kind: str, prompts: int) -> None:
        self.kind, _, period = kind.partition(":")
        self.period = int(period) if period else EVERY
        self.shift = model.shift
        self.kv = Stored(model)
        self._prompts = list(range(prompts))
        self._masked: Bool[Tensor, "b k"] | None = None  # masks before the previous step

    def step(
        self,
        active: Sequence[int],
        spans: Sequence[Span],
        steps: Sequence[int],
        masked: Bool[Tensor, "b k"],
    ) -> tuple[int, int, Bool[Tensor, "b k"] | None]:
        """Return the first and the past-the-end column to compute, and the mask of columns to replace.

        The mask is None if every column is computed. `steps` contains the step within each prompt's
        block, and `masked` marks the current masks.
        """
        before = self._masked
        if list(active) != self._prompts:
            indices = torch.tensor([self._prompts.index(b) for b in active])
            self.kv.batch_select_indices(indices)
            self._prompts = list(active)
            before = None if before is None else before[indices.to(before.device)]
        self._masked = masked
        often = self.kind == "dkv"
        anew = [step == 0 or (often and (step < 2 or step % self.period == 0)) for step in steps]
        size = masked.shape[1]
        if before is None or all(anew):
            self.kv.fresh = None
            return 0, size, None
        fresh = torch.zeros_like(masked)
        for b, span in enumerate(spans):
            start = max(0, span.start - self.shift)
            if anew[b]:
                fresh[b] = True
            elif self.kind == "prefix":
                fresh[b, start:] = True
            elif self.kind == "dual":
                fresh[b, start : span.stop] = True
            else:
                fresh[b] = before[b]
                if self.shift:
                    fresh[b, :-1] |= before[b, 1:]
        if any(anew):
            first, stop = 0, size
        else:
            first = max(0, min(span.first for span in spans) - self.shift)
            stop = max(span.stop for span in spans) if self.kind == "dual" else size
        self.kv.fresh, self.kv.first = fresh, first
        return first, stop, fresh
