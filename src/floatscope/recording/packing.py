"""What a forward that is recorded and replayed leaves of its statistics, and how that is sent.

The next replay overwrites it: it is copied at once, on the device, where it is also cut into prompts.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from ..attention import Capture, Captured, LayerStatistics
from ..attention.captured import Candidates
from ..models import Visibility
from .fixed_sums import FixedSums
from .posting import Cut, cuts, post
from .steps import Places, Whole, begin, wholes
from .transfer import Outbox


@dataclass(eq=False)
class Packed:
    """What a recorded forward leaves; empty where nobody looked on."""

    wholes: list[Whole] = field(default_factory=list)
    nobodys: Bool[Tensor, "b k"] | None = None  # padding, and columns that are not filled yet
    candidates: Candidates | None = None  # rows that may be revealed: of all layers,
    held: dict[int, LayerStatistics] = field(default_factory=dict)  # or what to compute them from

    def take(self, captured: Captured) -> None:
        """While it is recorded: the kernels that put layers together are the last ones of the forward."""
        self.wholes, self.nobodys = list(wholes(captured)), captured.labels.region < 0
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


@dataclass(eq=False)
class Packing:
    """The capture as part of a forward that is recorded (`models/graphs.py`), with what it leaves."""

    capture: Capture
    left: Packed | None = None  # by the latest forward, if it was replayed
    sums: FixedSums | None = None  # with a cache of fixed size: what a forward adds to
    _like: object = None  # the prompts of the latest forward, which are those of the next
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
        """One step of a batch, as `posting.record` does it from layers."""
        begin(step, places)
        packed = self.left
        if packed is None:
            return
        like = [(id(recorded), own.start) for recorded, own in places]
        if self._like != like:
            self._like, self._cuts = like, cuts(places, to_come=True)
        for whole in packed.wholes:
            post(whole, self._cuts, dtype, outbox, packed.nobodys)

    def replayed(self, left: Packed) -> None:
        self.left = left
        self.capture.replayed(left.held)
