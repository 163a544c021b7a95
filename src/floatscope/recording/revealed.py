"""The rows behind what was revealed: held on the device until they are many, then sent by prompt.

A step reveals a few rows of each prompt. Sent at once they would be dozens of small arrays; together a
prompt's are one array of each kind, in the order in which they were revealed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..attention import Rows
from ..models.placing import sent
from .kept import PromptRecord
from .transfer import Outbox, Part

_MOST = 64 << 20  # bytes held


@dataclass(eq=False)
class RevealedRows:
    """`add` them as they come, `send` the last ones."""

    recorded: Sequence[PromptRecord]
    dtype: np.dtype
    outbox: Outbox
    _held: list[Rows] = field(default_factory=list)
    _whose: list[int] = field(default_factory=list)  # by row: the prompt,
    _padding: list[int] = field(default_factory=list)  # and the columns before its own
    _bytes: int = 0

    def add(self, rows: Rows, whose: Sequence[int], padding: Sequence[int]) -> None:
        self._held.append(rows)
        self._whose += whose
        self._padding += padding
        self._bytes += rows.key.nbytes + rows.weight.nbytes + rows.flow.nbytes
        if self._bytes > _MOST:
            self.send()

    def send(self) -> None:
        held, whose, padding = self._held, np.array(self._whose, int), np.array(self._padding, int)
        self._held, self._whose, self._padding, self._bytes = [], [], [], 0
        if not held:
            return
        order = np.argsort(whose, kind="stable")
        key, weight, flow = (
            _together([getattr(rows, name) for rows in held], order)
            for name in ("key", "weight", "flow")
        )
        if padding.any():  # keys are counted from the prompt's first
            before = sent(torch.from_numpy(padding[order]), key.device)[:, None, None, None]
            key = torch.where(key >= 0, key - before, key)
        parts: list[list[Part]] = [[], [], []]
        for b in np.unique(whose):
            first, stop = np.searchsorted(whose[order], [b, b + 1])
            own = self._parts(int(b), slice(first, stop), key, flow)
            for some, part in zip(parts, own, strict=True):
                some.append(part)
        for tensor, some in zip((key, weight, flow), parts, strict=True):
            self.outbox.post_parts(tensor, some)

    def _parts(self, b: int, mine: slice, key: Tensor, flow: Tensor) -> list[Part]:
        recorded = self.recorded[b]
        n, heads = mine.stop - mine.start, key.shape[1:3]
        regions = list(recorded.shape.regions)
        arrays = {
            "row_key": np.empty((n, *heads, key.shape[3]), np.int32),
            "row_weight": np.empty((n, *heads, key.shape[3]), self.dtype),
            "row_flow": np.empty((n, *heads, len(regions)), self.dtype),
        }
        for name, array in arrays.items():
            recorded.event_arrays.setdefault(name, []).append(array)
        own = [lambda every: every[mine]] * 2 + [lambda every: every[mine][..., regions]]
        return list(zip(own, arrays.values(), strict=True))


def _together(parts: list[Tensor], order: np.ndarray) -> Tensor:
    every = torch.cat(parts)  # (n, l, h, _)
    if (np.diff(order) == 1).all():
        return every
    return every[sent(torch.from_numpy(order), every.device)]
