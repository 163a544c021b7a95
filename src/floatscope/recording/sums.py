"""Running sums of a decoding with a KV cache: each forward adds its rows to the sums of earlier forwards.

The rows of a causal model and of finished blocks never change, so the attention of all rows so far to a key
is the sum over the forwards. A tensor contains an array for all layers, with the dimensions (b, *dims) that
`floatscope.statistics` lists.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..statistics import STATISTICS, Array, Join

# (array, its values in this forward, the part of settling rows or None for all) → values of all rows so far.
Joining = Callable[[Array, Tensor, Tensor | None], Tensor]


def alone(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
    """Return the new values unchanged, because a forward without a cache has all rows."""
    return new


@dataclass(eq=False)
class RunningSums:
    """Running sums over forwards, which grow with the cache.

    In a block model, the rows of finished blocks settle: they never change again. The rows of the current
    block are recomputed at every step. They are included in the result of a step but not in the running sums.
    """

    total: dict[str, Tensor] = field(default_factory=dict)
    prompts: list[int] = field(default_factory=list)

    def only(self, prompts: Sequence[int]) -> None:
        """Keep the sums of the given prompts only."""
        if self.total and list(prompts) != self.prompts:
            places = [self.prompts.index(p) for p in prompts]
            self.total = {name: total[places] for name, total in self.total.items()}
        self.prompts = list(prompts)

    def join(self, all_settle: bool) -> Joining:
        """Return a function that adds a forward's arrays to the running sums and returns the combined values.

        `all_settle` says that no row of the forward is recomputed later.
        """

        def joined(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
            if array.join is Join.LATEST:
                return new
            old = self.total.get(array.name)
            combined = _add_rows(array, old, new)
            if all_settle:
                self.total[array.name] = combined
            elif settled is not None:
                self.total[array.name] = _add_rows(array, old, settled)
            return combined

        return joined


def _add_rows(array: Array, old: Tensor | None, new: Tensor) -> Tensor:
    """Append the new rows to an array by row, or add old and new sums; `new` may be overwritten."""
    if old is None:
        return new
    if array.join is Join.ROWS:
        return torch.cat([old, new], dim=-1)
    width = min(old.shape[-1], new.shape[-1])  # a longer prompt may have ended
    new[..., :width] += old[..., :width]  # earlier rows do not see the new keys
    return new


@dataclass(eq=False)
class FixedSums:
    """Running sums for a fixed-size KV cache, at fixed memory addresses.

    A recorded and replayed forward always adds to the same tensors. These tensors have the columns of the
    cache; unfilled columns do not count. The initial values of the tensors come from RunningSums, and the
    sums can be converted back to RunningSums.

    Attributes:
        totals: sums of rows that are not recomputed.
        states: the rollout of every row, by layer.
    """

    totals: dict[str, Tensor]
    states: dict[int, Tensor]
    name: object = field(default_factory=object)

    @classmethod
    def allocate(
        cls, running: dict[str, Tensor], states: dict[int, Tensor], size: int
    ) -> "FixedSums":
        """Allocate sums of the shapes of `running` and `states`, but with `size` columns."""
        totals = {name: t.new_zeros(_shape(name, t, size)) for name, t in running.items()}
        wide = {n: s.new_zeros(s.shape[0], size, s.shape[2]) for n, s in states.items()}
        return cls(totals, wide)

    @staticmethod
    def kind(running: dict[str, Tensor], states: dict[int, Tensor], size: int) -> Hashable:
        """Return a key that is equal for sums of the same shapes and dtypes."""
        shapes = [(name, *_shape(name, t, size), t.dtype) for name, t in running.items()]
        rollout = tuple((layer, len(state), state.shape[2]) for layer, state in states.items())
        return "running sums", size, tuple(shapes), rollout

    def tensors(self) -> list[Tensor]:
        """Return the tensors of all sums and states."""
        return [*self.totals.values(), *self.states.values()]

    def enter(self, running: dict[str, Tensor], states: dict[int, Tensor]) -> None:
        """Copy running sums and rollout states into the tensors, and set the other columns to zero."""
        for name, mine in self.totals.items():
            mine.zero_()
            # A longer prompt may have ended.
            width = min(mine.shape[-1], running[name].shape[-1])
            mine[..., :width] = running[name][..., :width]
        for layer, state in self.states.items():
            state.zero_()
            state[:, : states[layer].shape[1]] = states[layer]

    def leave(self, columns: int) -> dict[str, Tensor]:
        """Return copies of the sums by name; arrays by row are cut to the first `columns` rows."""
        copies = {}
        for name, total in self.totals.items():
            rows = STATISTICS.arrays()[name].join is Join.ROWS
            copies[name] = (total[..., :columns] if rows else total).clone()
        return copies

    def join(self, all_settle: bool, columns: Int[Tensor, " q"]) -> Joining:
        """Return a function that adds a forward's arrays to the sums and returns the combined values.

        The forward's rows are at `columns`. `all_settle` says that none of these rows is recomputed later.
        The next forward overwrites the combined values. The function runs only on the device, so it can be
        recorded as part of a forward.
        """

        def joined(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
            total = self.totals.get(array.name)
            if total is None:
                return new
            if array.join is Join.ROWS:  # rows computed again are overwritten
                return new if new.shape[-1] != len(columns) else total.index_copy_(-1, columns, new)
            if all_settle:
                return total.add_(new)
            combined = new.add_(total)
            if settled is not None:
                total.add_(settled)
            return combined

        return joined


def _shape(name: str, tensor: Tensor, size: int) -> tuple[int, ...]:
    """Return the shape of an array, with `size` columns if the array is by position."""
    by_position = STATISTICS.arrays()[name].by_position
    return (*tensor.shape[:-1], size) if by_position else tuple(tensor.shape)


def place_rows(fresh: Bool[Tensor, "b k"], rows: slice) -> Joining:
    """Return a function that places arrays by row in all columns, with NaN or −1 for rows not computed.

    `fresh` marks the computed columns; `rows` is the range of the forward's rows.
    """

    def joined(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
        if array.join is not Join.ROWS:
            return new
        nothing = torch.nan if new.is_floating_point() else -1
        padded = new.new_full((*new.shape[:-1], fresh.shape[1]), nothing)
        padded[..., rows] = new
        out = ~fresh.to(new.device)
        return padded.masked_fill(out.view(len(out), *[1] * (new.ndim - 2), -1), nothing)

    return joined
