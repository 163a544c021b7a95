"""Who sees whom in one forward, kept as a rule and not as an S×S matrix.

The matrix is made only where transformers needs one (padding, blocks), once per forward and shared
by all layers. Padding is always on the left and never counts.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .family import Direction


@dataclass(frozen=True, eq=False)
class Visibility:
    """`queries` rows at the end of `keys` positions; `padding[b]` empty positions at the left."""

    direction: Direction
    block: int | None
    padding: Int[Tensor, " b"]
    queries: int
    keys: int

    @property
    def is_causal(self) -> bool:
        return self.direction is Direction.CAUSAL

    @cached_property
    def padded(self) -> bool:
        return bool((self.padding > 0).any())

    @cached_property
    def query_positions(self) -> Int[Tensor, " q"]:
        """Where each row stands among the keys."""
        return torch.arange(self.keys - self.queries, self.keys, device=self.padding.device)

    @cached_property
    def key_is_real(self) -> Bool[Tensor, "b k"]:
        return torch.arange(self.keys, device=self.padding.device) >= self.padding[:, None]

    @cached_property
    def position_ids(self) -> Int[Tensor, "b q"] | None:
        """Positions counted from the first real token; None where transformers counts the same."""
        if not self.padded:
            return None
        return (self.query_positions - self.padding[:, None]).clamp(min=0)

    @cached_property
    def last_visible(self) -> Int[Tensor, "b q"]:
        """The last key each query sees: with left padding, all a direction has to say."""
        rows = self.query_positions.expand(len(self.padding), -1)
        if self.direction is Direction.CAUSAL:
            return rows
        if self.direction is Direction.BIDIRECTIONAL:
            return torch.full_like(rows, self.keys - 1)
        assert self.block is not None
        pad = self.padding[:, None]
        return torch.clamp(
            pad + ((rows - pad) // self.block + 1) * self.block - 1, max=self.keys - 1
        )

    @cached_property
    def mask(self) -> Bool[Tensor, "b 1 q k"] | None:
        """What SDPA is given: None where everything, or everything so far, may be seen."""
        if not self.padded and self.direction is not Direction.BLOCK_CAUSAL:
            return None
        return self.matrix[:, None]

    @property
    def matrix(self) -> Bool[Tensor, "b q k"]:
        """The whole S×S matrix. A padding row sees itself alone, so that no row is empty."""
        keys = torch.arange(self.keys, device=self.padding.device)
        seen = (keys <= self.last_visible[:, :, None]) & self.key_is_real[:, None, :]
        return seen | (keys == self.query_positions[:, None])
