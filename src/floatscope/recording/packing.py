"""Hold the statistics that a recorded and replayed forward computes.

The next replay of the forward overwrites these statistics. `step_records` copies them on the device when it
splits them by prompt.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from jaxtyping import Bool
from torch import Tensor

from ..attention import Capture, Captured
from ..attention.captured import Candidates, Layer
from ..models import Visibility
from ..statistics import Array
from .step_record import batch_values
from .sums import FixedSums, Joining, alone


@dataclass(eq=False)
class Packed:
    """The results of a recorded forward; empty if no capture was active."""

    values: list[tuple[Array, Tensor]] = field(default_factory=list)
    unused: Bool[Tensor, "b k"] | None = None  # padding and unfilled columns
    candidates: Candidates | None = None  # rows that may be revealed, in all layers
    held_layers: dict[int, Layer] = field(default_factory=dict)  # or tensors to compute them from

    def rows_of(self, captured: Captured) -> Captured:
        """Return the capture with a copy of the candidate rows, if they were computed."""
        if self.candidates is None:
            return captured
        candidates = self.candidates
        copies = Candidates(
            candidates.key.clone(), candidates.weight.clone(), candidates.flow.clone()
        )
        return replace(captured, layers={}, stacked=copies)


@dataclass(eq=False)
class Packing:
    """A capture as part of a recorded forward (`models/graphs.py`), with its results."""

    capture: Capture
    results: Packed | None = None  # of the latest forward, if it was replayed
    sums: FixedSums | None = None  # with a fixed-size cache: running sums

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
        if captured is None:
            return
        join: Joining = alone
        if self.sums is not None and visible.row_columns is not None:
            join = self.sums.join(captured.settled is None, visible.row_columns)
        # The kernels that stack the layers are the last ones of the forward.
        packed.values = list(batch_values(captured, join))
        packed.unused = captured.labels.region < 0
        packed.candidates = captured.detached().stacked
        packed.held_layers = {
            number: Layer(held_rows=layer.held_rows)
            for number, layer in captured.layers.items()
            if layer.held_rows is not None
        }

    def replayed(self, packed: Packed) -> None:
        self.results = packed
        self.capture.replayed(packed.held_layers)
