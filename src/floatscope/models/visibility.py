"""The rule that determines which rows see which keys in one forward, without an S×S matrix.

The S×S matrix is computed only if transformers needs a mask (for padding or blocks), once per forward for
all layers. Padding is always on the left, and the row of a token never sees it. The prompts of a batch
may have their blocks at different positions: each prompt has its own grid, and its own last column if it
is at an earlier block than other prompts. Local layers have a narrower rule (`within`); the network
computes the mask of local layers.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..errors import UsageError
from .family import Direction


@dataclass(frozen=True, eq=False)
class Visibility:
    """Which of `keys` columns each of `queries` rows sees; in prompt b the first `padding[b]` are empty.

    The rows are those of the last columns, unless `first` states the column of the first row.
    """

    direction: Direction
    block: int | None
    padding: Int[Tensor, " b"]
    queries: int
    keys: int
    offset: Int[Tensor, " b"] | None = None  # positions by which the first block is shorter
    current: Int[Tensor, " b"] | None = None  # column at which the block being decided begins
    # first column after the existing ones; by default all exist
    end: Int[Tensor, " b"] | None = None
    first: int | None = None  # column of the first row
    reach: int | None = None  # of a local layer: how far a row sees to either side
    # With a cache of fixed size: the columns of the rows, and the number of filled columns. Both are on
    # the device, so one recorded forward can be replayed as they grow.
    row_columns: Int[Tensor, " q"] | None = None
    n_filled: Int[Tensor, ""] | None = None

    def within(self, reach: int | None) -> "Visibility":
        """Return the visibility in a layer that sees `reach` positions to either side (None: no limit)."""
        if reach is None or reach >= self.keys - 1:
            return self
        if self.direction is not Direction.BIDIRECTIONAL:
            raise UsageError(
                f"local layers in a model that is {self.direction}",
                "Load it without direction=..., as a bidirectional model.",
            )
        if reach not in self._narrower:
            self._narrower[reach] = replace(self, reach=reach)
        return self._narrower[reach]

    @cached_property
    def _narrower(self) -> "dict[int, Visibility]":
        return {}

    @property
    def is_causal(self) -> bool:
        """Whether the direction is causal."""
        return self.direction is Direction.CAUSAL

    @cached_property
    def padded(self) -> bool:
        """Whether any prompt has padding."""
        return bool((self.padding > 0).any())

    @property
    def first_row(self) -> int:
        """Column of the first row."""
        return self.keys - self.queries if self.first is None else self.first

    @property
    def rows(self) -> slice:
        """Columns of the rows."""
        return slice(self.first_row, self.first_row + self.queries)

    def of_rows(self, by_column: Tensor, axis: int) -> Tensor:
        """Return the rows' values from a tensor that has one value per column along `axis`."""
        if self.row_columns is not None:
            return by_column.index_select(axis, self.row_columns)
        return by_column.narrow(axis, self.first_row, self.queries)

    @cached_property
    def query_positions(self) -> Int[Tensor, " q"]:
        """Column of each row."""
        if self.row_columns is not None:
            return self.row_columns
        start = self.first_row
        return torch.arange(start, start + self.queries, device=self.padding.device)

    @cached_property
    def key_is_real(self) -> Bool[Tensor, "b k"]:
        """Whether each column counts, that is, is neither padding nor after its prompt's end."""
        return self._is_real(torch.arange(self.keys, device=self.padding.device))

    @cached_property
    def row_is_real(self) -> Bool[Tensor, "b q"]:
        """Whether each row counts, that is, is neither padding nor after its prompt's end."""
        return self._is_real(self.query_positions)

    def _is_real(self, columns: Int[Tensor, " n"]) -> Bool[Tensor, "b n"]:
        real = columns >= self.padding[:, None]
        if self.n_filled is not None:
            real = real & (columns < self.n_filled)
        return real if self.end is None else real & (columns < self.end[:, None])

    @cached_property
    def position_ids(self) -> Int[Tensor, "b q"] | None:
        """Positions counted from the first real token; None if transformers' default is the same."""
        if not self.padded and self.first is None:
            return None
        return (self.query_positions - self.padding[:, None]).clamp(min=0)

    @cached_property
    def last_visible(self) -> Int[Tensor, "b q"]:
        """Column of the last key that each query sees. The column never decreases from row to row.

        Without local layers, the padding and the last visible key determine the whole visibility.
        """
        rows = self.query_positions.expand(len(self.padding), -1)
        if self.direction is Direction.CAUSAL:
            return rows
        if self.direction is Direction.BIDIRECTIONAL:
            if self.reach is not None:
                return torch.clamp(rows + self.reach, max=self.keys - 1)
            return torch.full_like(rows, self.keys - 1)
        assert self.block is not None
        zero = self.padding if self.offset is None else self.padding - self.offset
        zero = zero[:, None]  # the beginning of the grid
        last = zero + ((rows - zero) // self.block + 1) * self.block - 1
        if self.direction is Direction.ACTIVE_BLOCK:
            current = (
                rows.new_full((len(rows),), self.keys) if self.current is None else self.current
            )
            last = torch.where(rows >= current[:, None], last, rows)
        return torch.clamp(last, max=self.keys - 1 if self.n_filled is None else self.n_filled - 1)

    @cached_property
    def first_visible(self) -> Int[Tensor, "b q"]:
        """Column of the first key that each query sees. The column never decreases from row to row."""
        padding = self.padding[:, None].expand(-1, self.queries)
        if self.reach is None:
            return padding
        return torch.maximum(padding, self.query_positions - self.reach)

    @cached_property
    def count(self) -> Int[Tensor, "b q"]:
        """Number of keys that each query sees."""
        return (self.last_visible - self.first_visible + 1).clamp(min=1)

    @cached_property
    def mask(self) -> Bool[Tensor, "b 1 q k"] | None:
        """Mask for SDPA; None if no mask is needed: each row sees every key, or every key up to its own."""
        plain = not self.direction.in_blocks and self.first is None and self.reach is None
        if plain and not self.padded:
            return None
        return self.matrix[:, None]

    @cached_property
    def sees_all(self) -> bool:
        """Whether every row sees every key, such as the rows of a block whose context is in a cache."""
        return (
            self.reach is None
            and self.n_filled is None
            and not self.padded
            and bool((self.last_visible == self.keys - 1).all())
        )

    @property
    def matrix(self) -> Bool[Tensor, "b q k"]:
        """Whether each row sees each key. A padding row sees itself, so that every row sees a key."""
        keys = torch.arange(self.keys, device=self.padding.device)
        first, last = self.first_visible[:, :, None], self.last_visible[:, :, None]
        visible = (keys >= first) & (keys <= last)
        return visible | (keys == self.query_positions[:, None])
