"""The forwards of a decoding with an exact KV cache: each computes the rows that are new.

The prompt's forward is launched, with a cache that grows. On a GPU what follows is one shape again and again:
the cache becomes one of fixed size, and forwards over it are recorded and replayed (`replay.py`) or, where
that does not pay or cannot be, launched: the same kernels, and the same numbers. Where a cache of fixed size
cannot be, all are launched with the one that grows, as everywhere else.
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
    """Columns 0 … `columns` − 1 are stored, and will not change. `most`: how many there may be."""

    def __init__(self, model: Model, watcher: Watcher, most: int) -> None:
        self.model, self.most, self.columns = model, most, 0
        self.kv = DynamicCache(config=model.net.config)
        self.fixed: FixedCache | None = None
        self._kind: Hashable = None
        self._forwards = Forwards(model, watcher)
        self._able = self._forwards.store is not None and model.on_one_device
        self._open = ExitStack()

    def room(self, columns: int, before: State | None) -> int | None:
        """So many will be filled by the next forward, after the one of this state: the columns of the cache
        of fixed size that is ready for it. None: there is none."""
        if not self._able or before is None or not self.columns:
            return None
        hindered = self._forwards.fixed_hindered(before)
        if hindered is not None:
            notice(hindered)
            self.launch()
            self._able = False
            return None
        size = room_for(columns, self.most)
        if self.fixed is not None and self.fixed.size < columns:
            self.launch()
        if self.fixed is None:
            store = self._store
            self._kind = FixedCache.kind(self.kv, size)
            self.fixed = store.take(self._kind, lambda: FixedCache(self.model, self.kv, size))
            self.fixed.enter(self.kv)
            for layer in self.kv.layers:  # one copy is enough
                b, kv, _, d = layer.keys.shape
                layer.keys, layer.values = (
                    one.new_empty(b, kv, 0, d) for one in (layer.keys, layer.values)
                )
            self._open.enter_context(attention_hook.attach(self.model.net, attend, innermost=True))
        return self.fixed.size

    def launch(self) -> None:
        """With a cache that grows, from now on."""
        if self.fixed is not None:
            self.fixed.leave(self.kv, self.columns)
            self._give()

    def only(self, places: Sequence[int]) -> None:
        """The other prompts have ended."""
        self.launch()
        self.kv.batch_select_indices(torch.tensor(places))

    def keep(self, columns: int) -> None:
        """Of what the last forward computed, so much is final."""
        self.columns = columns
        if self.fixed is None:
            for layer in self.kv.layers:
                layer.keys, layer.values = layer.keys[:, :, :columns], layer.values[:, :, :columns]

    def forward(
        self, ids: Int[Tensor, "b q"], rows: Int[Tensor, " w"], state: State, to_come: int
    ) -> Float[Tensor, "b w v"]:
        """Logits of these rows; `to_come`: forwards like this, with this one. A replay overwrites them."""
        if state.visible.at is None:
            return self.model.forward(ids, rows, state.visible, self.kv)
        assert self.fixed is not None
        return self._forwards.step(ids, rows, state, self.fixed, to_come)

    def close(self) -> None:
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
