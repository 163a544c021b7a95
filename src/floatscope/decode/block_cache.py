"""An exact cache for block models: it stores keys and values of finished blocks, which cannot change.

Every step computes the rows of the block being decided. The first step of a block also computes the rows
of the finished block before it, in the same forward. The finished block does not see the new block, so the
stored keys of the finished block are exact. In a batch, columns are stored once they are finished for
every prompt.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model
from .cached_forwards import CachedForwards
from .state import State, Watcher


class BlockCache:
    """A cache of keys and values of columns 0 … length − 1, for the prompts that are still being decoded."""

    def __init__(self, model: Model, watcher: Watcher, prompts: int, max_columns: int) -> None:
        self.model, self.forwards = model, CachedForwards(model, watcher, max_columns)
        self._prompts = list(range(prompts))

    @property
    def length(self) -> int:
        """Number of stored columns."""
        return self.forwards.columns

    def close(self) -> None:
        """Release the cache's memory."""
        self.forwards.close()

    def only(self, active: Sequence[int]) -> None:
        """Drop the prompts that are not in `active`."""
        if list(active) != self._prompts:
            self.forwards.only([self._prompts.index(b) for b in active])
            self._prompts = list(active)

    def predict(
        self, state: State, start: int, stop: int, final: int, to_come: int
    ) -> Float[Tensor, "b w v"]:
        """Return the logits for positions start … stop − 1, and keep the first `final` columns in the cache.

        `to_come` is the number of forwards of this kind that are left, including this one.
        """
        visible, device = state.visible, state.canvas.device
        rows = torch.arange(start, stop, device=device) - self.model.shift - visible.first_row
        ids = state.canvas[:, visible.rows]
        logits = self.forwards.forward(ids, rows.clamp(min=0), state, to_come)
        self.forwards.keep(final)
        return logits
