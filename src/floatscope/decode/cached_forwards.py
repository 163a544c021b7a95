"""The forwards of a decoding with an exact KV cache: each forward computes only the new rows.

The forward of the prompt is launched with a growing cache. On a GPU that cache is then replaced by a
cache of fixed size, so that all later forwards have the same shape. These forwards are recorded and
replayed (`replay.py`), or launched with the same kernels if recording is impossible or saves no time;
launched and replayed forwards give the same results. On a CPU, and if a cache of fixed size cannot be
used, every forward is launched with the growing cache.
"""

from collections.abc import Hashable, Sequence
from contextlib import ExitStack

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from ..models import Model, attention_hook, graphs
from .fixed_cache import FixedCache, attend, room_for
from .replay import Forwards, notice
from .state import State, Watcher


class CachedForwards:
    """The forwards of a decoding with a cache, in which columns 0 … `columns` − 1 are final and stored."""

    def __init__(self, model: Model, watcher: Watcher, max_columns: int) -> None:
        self.model, self.max_columns, self.columns = model, max_columns, 0
        self.kv = DynamicCache(config=model.net.config)
        self.fixed: FixedCache | None = None
        self._kind: Hashable = None
        self._forwards = Forwards(model, watcher)
        self._able = self._forwards.store is not None and model.on_one_device
        self._open = ExitStack()

    def room(self, columns: int, before: State | None) -> int | None:
        """Return the size of the fixed cache for the next forward, or None to use the growing cache.

        The forward fills `columns` columns; `before` is the state of the previous forward.
        """
        if not self._able or before is None or not self.columns:
            return None
        hindered = self._forwards.fixed_hindered(before)
        if hindered is not None:
            notice(hindered)
            self.launch()
            self._able = False
            return None
        size = room_for(columns, self.max_columns)
        if self.fixed is not None and self.fixed.size < columns:
            self.launch()
        if self.fixed is None:
            store = self._store
            self._kind = FixedCache.kind(self.kv, size)
            self.fixed = store.take(self._kind, lambda: FixedCache(self.model, self.kv, size))
            self.fixed.enter(self.kv)
            for layer in self.kv.layers:  # all layers share one copy
                b, kv, _, d = layer.keys.shape
                layer.keys, layer.values = (
                    tensor.new_empty(b, kv, 0, d) for tensor in (layer.keys, layer.values)
                )
            self._open.enter_context(attention_hook.attach(self.model.net, attend, innermost=True))
        return self.fixed.size

    def launch(self) -> None:
        """Copy the fixed cache, if it is in use, back to the growing cache, and release the fixed cache."""
        if self.fixed is not None:
            self.fixed.leave(self.kv, self.columns)
            self._give()

    def only(self, places: Sequence[int]) -> None:
        """Keep only the prompts at these indices of the batch."""
        self.launch()
        self.kv.batch_select_indices(torch.tensor(places))

    def keep(self, columns: int) -> None:
        """Mark the first `columns` columns as final; a growing cache drops all other columns."""
        self.columns = columns
        if self.fixed is None:
            for layer in self.kv.layers:
                layer.keys, layer.values = layer.keys[:, :, :columns], layer.values[:, :, :columns]

    def forward(
        self, ids: Int[Tensor, "b q"], rows: Int[Tensor, " w"], state: State, to_come: int
    ) -> Float[Tensor, "b w v"]:
        """Return the logits of `rows` in a forward of the tokens `ids`. A later replay overwrites them.

        `to_come` is the number of forwards of this kind that are left, including this one.
        """
        if state.visible.row_columns is None:
            return self.model.forward(ids, rows, state.visible, self.kv)
        assert self.fixed is not None
        return self._forwards.step(ids, rows, state, self.fixed, to_come)

    def close(self) -> None:
        """Release the cache and the recorded forwards."""
        self._give()
        self._forwards.close()

    @property
    def _store(self) -> graphs.Store:
        assert self._forwards.store is not None
        return self._forwards.store

    def _give(self) -> None:
        self._open.close()
        if self.fixed is not None:
            self._store.give(self._kind, self.fixed)
            self.fixed = None
