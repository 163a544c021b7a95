"""The attention rows that predicted revealed positions, collected on the device and sent by prompt.

A step reveals a few rows of each prompt. Sent one by one, they would be dozens of small arrays; together,
each prompt has one array of each kind, in order of reveal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

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
    """Collects rows: `add` them as they come, and `send` the rest at the end."""

    recorded: Sequence[PromptRecord]
    dtype: np.dtype
    outbox: Outbox
    _held: list[Rows] = field(default_factory=list)
    _whose: list[int] = field(default_factory=list)  # by row: the prompt,
    _padding: list[int] = field(default_factory=list)  # and the columns before its own
    _bytes: int = 0

    def add(self, rows: Rows, whose: Sequence[int], padding: Sequence[int]) -> None:
        """Add rows, with the prompt and the padding of each; send them if they take much memory."""
        self._held.append(rows)
        self._whose += whose
        self._padding += padding
        self._bytes += rows.key.nbytes + rows.weight.nbytes + rows.flow.nbytes
        if self._bytes > _MOST:
            self.send()

    def send(self) -> None:
        """Send all collected rows to the host."""
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
        kept = (("row_key", key, np.dtype(np.int32)), ("row_weight", weight, self.dtype))
        for name, tensor, dtype in (*kept, ("row_flow", flow, self.dtype)):
            parts: list[Part] = []
            for b in np.unique(whose):
                first, stop = np.searchsorted(whose[order], [b, b + 1])
                regions = list(self.recorded[b].shape.regions)
                last = regions if name == "row_flow" else slice(None)
                width = len(regions) if name == "row_flow" else tensor.shape[3]
                array = np.empty((stop - first, *tensor.shape[1:3], width), dtype)
                self.recorded[b].event_arrays.setdefault(name, []).append(array)
                parts.append((itemgetter((slice(first, stop), ..., last)), array))
            self.outbox.post_parts(tensor, parts)


def _together(parts: list[Tensor], order: np.ndarray) -> Tensor:
    every = torch.cat(parts)  # (n, l, h, _)
    if (np.diff(order) == 1).all():
        return every
    return every[sent(torch.from_numpy(order), every.device)]
