"""Running sums of a decoding with a KV cache of fixed size, in memory that stays where it is.

As `cache.RunningSums`, which has another tensor at every step: here a forward that is recorded and replayed
adds to the same ones. They hold all layers of a statistic together and have the cache's columns, of which
those not yet filled are nobody's. What they begin with is taken over from `RunningSums`, and can be given
back.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import Captured, Columns, LayerStatistics
from .cache import BY_ROW, SUMMED
from .steps import stack

_COLUMNS = ("score", "cosine", "query_norm", "viewers")  # sums over rows, too
_BY_KEY = {"column_sum", *_COLUMNS}
_NAMES = (*SUMMED, *_COLUMNS, *BY_ROW)
_PASSED = ("key_norm", "lens_token", "lens_probability", "lens_entropy")


@dataclass(eq=False)
class FixedSums:
    """`totals`: of rows that will not be computed again; `states`: the rollout of every row, by layer."""

    totals: dict[str, Tensor]
    states: dict[int, Tensor]
    name: object = field(default_factory=object)

    @classmethod
    def like(cls, begun: dict[str, Tensor], states: dict[int, Tensor], size: int) -> "FixedSums":
        """Room for these, in so many columns."""
        totals = {
            name: one.new_zeros(*one.shape[:-1], size) if _wide(name) else torch.zeros_like(one)
            for name, one in begun.items()
        }
        wide = {n: s.new_zeros(s.shape[0], size, s.shape[2]) for n, s in states.items()}
        return cls(totals, wide)

    @staticmethod
    def kind(begun: dict[str, Tensor], states: dict[int, Tensor], size: int) -> Hashable:
        shapes = tuple((name, *_shape(name, one), one.dtype) for name, one in begun.items())
        rollout = tuple((layer, len(state), state.shape[2]) for layer, state in states.items())
        return "running sums", size, shapes, rollout

    def tensors(self) -> list[Tensor]:
        return [*self.totals.values(), *self.states.values()]

    def enter(self, begun: dict[str, Tensor], states: dict[int, Tensor]) -> None:
        for name, mine in self.totals.items():
            mine.zero_()
            both = min(mine.shape[-1], begun[name].shape[-1])  # who had come further may have ended
            mine[..., :both] = begun[name][..., :both]
        for layer, state in self.states.items():
            state.zero_()
            state[:, : states[layer].shape[1]] = states[layer]

    def leave(self, layers: list[int], columns: int) -> dict[int, LayerStatistics]:
        """As `RunningSums` has it: layer by layer, and no more rows than there are. (A row of a finished
        block may see keys that not every prompt has finished.)"""
        found = {layer: LayerStatistics() for layer in layers}
        for place, one in enumerate(found.values()):
            parts = {}
            for name, total in self.totals.items():
                part = total.select(2 if name == "column_sum" else 1, place)
                parts[name] = (part[..., :columns] if name in BY_ROW else part).clone()
            columns_of = {name: parts.pop(name) for name in _COLUMNS if name in parts}
            for name, part in parts.items():
                setattr(one, name, part)
            if columns_of:  # a key's norm is never added
                one.columns = Columns(**columns_of, key_norm=columns_of["score"])
        return found

    def add(self, captured: Captured, at: Int[Tensor, " q"]) -> Captured:
        """With this forward's rows, which stand at these columns: of all rows so far. The next overwrites it.

        Runs on the device alone: it is recorded with the forward.
        """
        layers, totals, found = list(captured.layers.values()), self.totals, {}
        some = None if captured.settled is None else list(captured.settled.values())
        for name in (*_NAMES, *_PASSED):
            new = stack(layers, name)
            if new is None:
                continue
            if name not in totals or (name in BY_ROW and new.shape[-1] != len(at)):
                found[name] = new
            elif name in BY_ROW:  # rows that will be computed again are written again
                found[name] = totals[name].index_copy_(-1, at, new)
            elif some is None:
                found[name] = totals[name].add_(new)
            else:
                found[name] = new.add_(totals[name])
                settled = stack(some, name)
                if settled is not None:
                    totals[name].add_(settled)
        return replace(captured, together=found)


def beginning(total: dict[int, LayerStatistics]) -> dict[str, Tensor]:
    """What `RunningSums` has come to, all layers together."""
    every = {name: stack(list(total.values()), name) for name in _NAMES}
    return {name: one for name, one in every.items() if one is not None}


def _wide(name: str) -> bool:
    """It has a number for each column."""
    return name in _BY_KEY or name in BY_ROW


def _shape(name: str, one: Tensor) -> tuple[int, ...]:
    return tuple(one.shape[:-1] if _wide(name) else one.shape)
