"""What a forward that is recorded and replayed leaves of its statistics, and how that is sent.

The small ones are packed, by the forward itself, into one stretch of memory: Python then has one tensor to
send, not a dozen. What a replay leaves is overwritten by the next: here it is copied, at once and on the
device.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import Capture, Captured, LayerStatistics
from ..attention.captured import Candidates
from ..models import Visibility
from .fixed_sums import FixedSums
from .posting import BY_POSITION, Cut, cuts, post
from .steps import Places, PromptRecord, Whole, begin, part_of, wholes
from .transfer import Outbox, Part, Pick

_HOST = {torch.float32: np.dtype(np.float32), torch.int32: np.dtype(np.int32)}


@dataclass(frozen=True, eq=False)
class Cell:
    """Where a small statistic lies in the stretch; its own tensor is let go."""

    whole: Whole
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: np.dtype


@dataclass(eq=False)
class Packed:
    """What a recorded forward leaves; empty where nobody looked on."""

    flat: Tensor | None = None  # the bits of all small statistics, as whole numbers
    cells: list[Cell] = field(default_factory=list)
    large: list[Whole] = field(default_factory=list)  # those with a number for each position
    nobodys: Bool[Tensor, "b k"] | None = None  # padding, and columns that are not filled yet
    candidates: Candidates | None = None  # rows that may be revealed: of all layers,
    held: dict[int, LayerStatistics] = field(default_factory=dict)  # or what to compute them from

    def take(self, captured: Captured) -> None:
        """While it is recorded: the kernels that pack are the last ones of the forward."""
        bits, end = [], 0
        self.nobodys = captured.labels.region < 0
        for whole in wholes(captured):
            values = whole.values
            values = values.int() if values.dtype == torch.int64 else values
            whole = replace(whole, values=values)
            if whole.form in BY_POSITION:
                self.large.append(whole)
                continue
            start, end = end, end + values.numel()
            empty = replace(whole, values=values.new_empty(0))
            self.cells.append(Cell(empty, tuple(values.shape), start, end, _HOST[values.dtype]))
            bits.append(values.flatten().view(torch.int32))
        if bits:
            self.flat = torch.cat(bits)
        self.candidates = captured.detached().stacked
        self.held = {
            layer: LayerStatistics(held=one.held)
            for layer, one in captured.layers.items()
            if one.held is not None
        }

    def rows_of(self, captured: Captured) -> Captured:
        """With the candidates, in memory of their own."""
        if self.candidates is None:
            return captured
        kept = self.candidates
        own = Candidates(kept.key.clone(), kept.weight.clone(), kept.flow.clone())
        return replace(captured, layers={}, stacked=own)


@dataclass(frozen=True, eq=False)
class Move:
    """A prompt's part of a small statistic, as it is picked from the stretch at every step."""

    recorded: PromptRecord
    name: str
    shape: tuple[int, ...]
    kind: np.dtype
    pick: Pick

    def part(self) -> Part:
        return self.pick, self.recorded.place(self.name, self.shape, self.kind, by_key=False)


def moves(cells: Sequence[Cell], places: Places, dtype: np.dtype) -> list[Move]:
    """The same for all steps."""
    found = []
    for cell in cells:
        kind = cell.whole.kind or dtype
        for b, (recorded, own) in enumerate(places):
            shape, pick = part_of(cell.whole.form, cell.shape, b, recorded, own)
            found.append(Move(recorded, cell.whole.name, shape, kind, _of_cell(cell, pick)))
    return found


def _of_cell(cell: Cell, pick: Pick) -> Pick:
    def picked(flat: np.ndarray) -> np.ndarray:
        return pick(flat[cell.start : cell.stop].view(cell.kind).reshape(cell.shape))

    return picked


@dataclass(eq=False)
class Packing:
    """The capture as part of a forward that is recorded (`models/graphs.py`), which also packs."""

    capture: Capture
    left: Packed | None = None  # by the latest forward, if it was replayed
    sums: FixedSums | None = None  # with a cache of fixed size: what a forward adds to
    _like: object = None  # the latest forward, which the next are like
    _moves: list[Move] = field(default_factory=list)
    _cuts: list[Cut] = field(default_factory=list)

    def key(self) -> Hashable:
        return self.capture.key(), None if self.sums is None else self.sums.name

    def owns(self, handler: object) -> bool:
        return self.capture.owns(handler)

    def launching(self) -> float:
        return self.capture.launching()

    def inputs(self) -> dict[str, Tensor]:
        return self.capture.inputs()

    @contextmanager
    def recording(self, inputs: dict[str, Tensor], visible: Visibility) -> Iterator[Packed]:
        packed = Packed()
        with self.capture.recording(inputs, visible) as captured:
            yield packed
        if captured is not None:
            if self.sums is not None and visible.at is not None:
                captured = self.sums.add(captured, visible.at)
            packed.take(captured)

    def record(self, step: int, places: Places, dtype: np.dtype, outbox: Outbox) -> None:
        """One step of a batch, as `steps.record` does it from layers."""
        begin(step, places)
        packed = self.left
        if packed is None:
            return
        like = (packed, *((id(recorded), own.start) for recorded, own in places))
        if self._like != like:
            self._like = like
            self._moves, self._cuts = (
                moves(packed.cells, places, dtype),
                cuts(places, to_come=True),
            )
        for whole in packed.large:
            post(whole, self._cuts, dtype, outbox, packed.nobodys)
        if packed.flat is not None:
            outbox.post_parts(packed.flat.clone(), [move.part() for move in self._moves])

    def replayed(self, left: Packed) -> None:
        self.left = left
        self.capture.replayed(left.held)
