"""One forward that a capture measures: its labels and what follows from them, shared by all layers.

What depends on the forward only is computed here once, not in every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Visibility
from ..models.devices import moved
from .cpu.flow import ByRegion
from .shapes import Labels


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward: which rows see which keys, and the labels of its positions."""

    visible: Visibility
    labels: Labels
    rows: tuple[int, int]  # query rows that `Captured.rows` may be asked for
    cached: bool  # earlier rows came in earlier forwards
    prompts: Sequence[int] = ()  # whose forward it is: numbers that stay while others end
    # With a cache: so many of its rows are never computed again; None: all, as in a causal model.
    settled: int | None = None
    kept: bool = True  # its step is: drift is counted from one such step to the next
    partial: bool = False  # an approximate cache left rows out, whose statistics there are none of
    # For a lens: a stretch of positions, the row that predicts each, and which of them are masked.
    predicted: tuple[int, Int[Tensor, " w"], Bool[Tensor, "b w"]] | None = None
    _elsewhere: dict[torch.device, "Forward"] = field(default_factory=dict)
    _narrower: dict[int, "Forward"] = field(default_factory=dict)
    _repeated: dict[int, Labels] = field(default_factory=dict)

    def on(self, device: torch.device) -> "Forward":
        """Return the forward for a layer on another device; made once per device."""
        if self.labels.region.device == device:
            return self
        if device not in self._elsewhere:
            self._elsewhere[device] = moved(
                replace(self, _elsewhere={}, _narrower={}, _repeated={}), device
            )
        return self._elsewhere[device]

    def within(self, reach: int | None) -> "Forward":
        """Return the forward for a local layer with this reach; made once per reach."""
        visible = self.visible.within(reach)
        if reach is None or visible is self.visible:
            return self
        if reach not in self._narrower:
            apart: dict[str, Any] = {"_elsewhere": {}, "_narrower": {}, "_repeated": {}}
            self._narrower[reach] = replace(self, visible=visible, **apart)
        return self._narrower[reach]

    def repeated(self, n: int) -> Labels:
        """Return the labels of n layers joined as further prompts; made once per number."""
        if n not in self._repeated:
            group, region = (x.repeat(n, 1) for x in (self.labels.group, self.labels.region))
            self._repeated[n] = replace(self.labels, group=group, region=region)
        return self._repeated[n]

    @cached_property
    def settling(self) -> Labels:
        """Labels in which only the rows that settle count."""
        group = self.labels.group.clone()
        group[:, self.settled :] = -1
        return replace(self.labels, group=group)

    @cached_property
    def apart(self) -> Labels:
        """Labels in which the rows that settle have their own groups, after the others."""
        group, n_groups = self.labels.group, self.labels.n_groups
        moved = torch.where(self.settling.group >= 0, group + n_groups, group)
        return replace(self.labels, group=moved, n_groups=2 * n_groups)

    @cached_property
    def by_region(self) -> ByRegion | None:
        """Labels by region, for sums over many rows on a CPU; None if they do not apply."""
        if self.cached or not self.labels.group.is_cpu:
            return None
        return ByRegion.of(self.labels)

    @cached_property
    def max_entropy(self) -> Float[Tensor, "b 1 q"]:
        """ln of the number of visible keys; NaN for one key, whose entropy has no scale."""
        count = self.visible.count
        return torch.where(count > 1, count.float().log(), torch.nan)[:, None]
