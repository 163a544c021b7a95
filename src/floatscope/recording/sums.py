"""Running sums of a decoding with a KV cache: each forward adds rows, and nothing is computed again.

Rows of a causal model, and of finished blocks, never change: what all rows so far gave a key is the sum of
what the forwards gave it. Tensors hold all layers of an array: (b, *dims) as `floatscope.statistics` lists
them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..statistics import STATISTICS, Array, Join

# An array of this forward, and of those of its rows that settle (None: of all) → of all rows so far.
Joining = Callable[[Array, Tensor, Tensor | None], Tensor]


def alone(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
    """Return the new values unchanged: without a cache a forward has all rows."""
    return new


@dataclass(eq=False)
class RunningSums:
    """Sums that grow with the cache.

    Of a model in blocks the rows of finished blocks settle; those of the block being decided are computed
    again at every step, and are added to the others without being kept.
    """

    total: dict[str, Tensor] = field(default_factory=dict)
    prompts: list[int] = field(default_factory=list)

    def only(self, prompts: Sequence[int]) -> None:
        """Keep these prompts; the others have ended."""
        if self.total and list(prompts) != self.prompts:
            places = [self.prompts.index(p) for p in prompts]
            self.total = {name: total[places] for name, total in self.total.items()}
        self.prompts = list(prompts)

    def join(self, all_settle: bool) -> Joining:
        """Return how a forward's arrays join; `all_settle`: none of its rows is computed again."""

        def joined(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
            if array.join is Join.LATEST:
                return new
            old = self.total.get(array.name)
            whole = _grown(array, old, new)
            if all_settle:
                self.total[array.name] = whole
            elif settled is not None:
                self.total[array.name] = _grown(array, old, settled)
            return whole

        return joined


def _grown(array: Array, old: Tensor | None, new: Tensor) -> Tensor:
    """Join old rows and new ones, which nobody else holds."""
    if old is None:
        return new
    if array.join is Join.ROWS:
        return torch.cat([old, new], dim=-1)
    both = min(old.shape[-1], new.shape[-1])  # a prompt that had come further may have ended
    new[..., :both] += old[..., :both]  # earlier rows gave the new keys nothing
    return new


@dataclass(eq=False)
class FixedSums:
    """Running sums of a KV cache of fixed size, in memory that stays where it is.

    A forward that is recorded and replayed adds to the same tensors every time. They have the cache's
    columns, of which those not yet filled are nobody's. They begin with what RunningSums has, and can be
    given back.

    Attributes:
        totals: of rows that will not be computed again.
        states: the rollout of every row, by layer.
    """

    totals: dict[str, Tensor]
    states: dict[int, Tensor]
    name: object = field(default_factory=object)

    @classmethod
    def like(cls, begun: dict[str, Tensor], states: dict[int, Tensor], size: int) -> "FixedSums":
        """Make room for these, in so many columns."""
        totals = {name: t.new_zeros(_shape(name, t, size)) for name, t in begun.items()}
        wide = {n: s.new_zeros(s.shape[0], size, s.shape[2]) for n, s in states.items()}
        return cls(totals, wide)

    @staticmethod
    def kind(begun: dict[str, Tensor], states: dict[int, Tensor], size: int) -> Hashable:
        shapes = [(name, *_shape(name, t, size), t.dtype) for name, t in begun.items()]
        rollout = tuple((layer, len(state), state.shape[2]) for layer, state in states.items())
        return "running sums", size, tuple(shapes), rollout

    def tensors(self) -> list[Tensor]:
        return [*self.totals.values(), *self.states.values()]

    def enter(self, begun: dict[str, Tensor], states: dict[int, Tensor]) -> None:
        """Begin with these."""
        for name, mine in self.totals.items():
            mine.zero_()
            both = min(mine.shape[-1], begun[name].shape[-1])  # who had come further may have ended
            mine[..., :both] = begun[name][..., :both]
        for layer, state in self.states.items():
            state.zero_()
            state[:, : states[layer].shape[1]] = states[layer]

    def leave(self, columns: int) -> dict[str, Tensor]:
        """Return copies of the sums, with no more rows than there are."""
        left = {}
        for name, total in self.totals.items():
            rows = STATISTICS.arrays()[name].join is Join.ROWS
            left[name] = (total[..., :columns] if rows else total).clone()
        return left

    def join(self, all_settle: bool, at: Int[Tensor, " q"]) -> Joining:
        """Return how the arrays of a forward join, whose rows stand at these columns. The next forward
        overwrites them. Runs on the device alone: it is recorded with the forward."""

        def joined(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
            total = self.totals.get(array.name)
            if total is None:
                return new
            if array.join is Join.ROWS:  # rows that will be computed again are written again
                return new if new.shape[-1] != len(at) else total.index_copy_(-1, at, new)
            if all_settle:
                return total.add_(new)
            whole = new.add_(total)
            if settled is not None:
                total.add_(settled)
            return whole

        return joined


def _shape(name: str, tensor: Tensor, size: int) -> tuple[int, ...]:
    """The shape in so many columns, where an array has them."""
    by_position = STATISTICS.arrays()[name].by_position
    return (*tensor.shape[:-1], size) if by_position else tuple(tensor.shape)


def at_its_rows(fresh: Bool[Tensor, "b k"], rows: slice) -> Joining:
    """Place the values of computed rows; rows that an approximate cache left out are NaN or −1."""

    def joined(array: Array, new: Tensor, settled: Tensor | None) -> Tensor:
        if array.join is not Join.ROWS:
            return new
        nothing = torch.nan if new.is_floating_point() else -1
        whole = new.new_full((*new.shape[:-1], fresh.shape[1]), nothing)
        whole[..., rows] = new
        out = ~fresh.to(new.device)
        return whole.masked_fill(out.view(len(out), *[1] * (new.ndim - 2), -1), nothing)

    return joined
