"""Keys and values of finished blocks, which no later block can change: an exact cache.

A finished block is stored by one clean forward: the first step of the next block computes it together with
that block, which it does not see. So a step costs the rows of the block being decided, and the first step
of a block those of the one before it too. In a batch, what every prompt has finished is kept.
"""

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from ..models import Model


class BlockCache:
    """Columns 0 … length − 1 of the prompts that are still being decoded."""

    def __init__(self, model: Model, prompts: int) -> None:
        self.kv = DynamicCache(config=model.net.config)
        self.length = 0
        self._prompts = list(range(prompts))

    def only(self, active: Sequence[int]) -> None:
        """The others have ended."""
        if list(active) != self._prompts:
            at = torch.tensor([self._prompts.index(b) for b in active])
            self.kv.batch_select_indices(at)
            self._prompts = list(active)

    def keep(self, columns: int) -> None:
        """Of what the last forward computed, so much is final."""
        for layer in self.kv.layers:
            layer.keys, layer.values = layer.keys[:, :, :columns], layer.values[:, :, :columns]
        self.length = columns
