"""Keys and values of finished blocks, which no later block can change: an exact cache.

A finished block is stored by one clean forward: the first step of the next block computes it together with
that block, which it does not see. So a step costs the rows of the block being decided, and the first step
of a block those of the one before it too. In a batch, what every prompt has finished is kept.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..models import Model
from .cached_forwards import CachedForwards
from .state import State, Watcher


class BlockCache:
    """Columns 0 … length − 1 of the prompts that are still being decoded."""

    def __init__(self, model: Model, watcher: Watcher, prompts: int, most: int) -> None:
        self.model, self.forwards = model, CachedForwards(model, watcher, most)
        self._prompts = list(range(prompts))

    @property
    def length(self) -> int:
        return self.forwards.columns

    def close(self) -> None:
        self.forwards.close()

    def only(self, active: Sequence[int]) -> None:
        """The others have ended."""
        if list(active) != self._prompts:
            self.forwards.only([self._prompts.index(b) for b in active])
            self._prompts = list(active)

    def predict(
        self, state: State, start: int, stop: int, final: int, to_come: int
    ) -> Float[Tensor, "b w v"]:
        """What the model predicts at positions start … stop − 1; `final` columns are then finished."""
        visible, device = state.visible, state.canvas.device
        rows = torch.arange(start, stop, device=device) - self.model.shift - visible.first_row
        ids = state.canvas[:, visible.rows]
        logits = self.forwards.forward(ids, rows.clamp(min=0), state, to_come)
        self.forwards.keep(final)
        return logits
