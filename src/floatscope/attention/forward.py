"""Labels of one captured forward, and the values derived from the labels.

These values are the same for all layers, so they are computed once per forward.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Visibility
from ..models.devices import moved
from .shapes import Labels


@dataclass(frozen=True, eq=False)
class ByRegion:
    """Queries of a forward labelled by their own region, and the group of each region.

    If all queries of each region are in one group, the flow and the column sums by group are small products
    of the column sums by region. The weights then need not be multiplied by the regions of the keys.
    """

    labels: Labels
    groups: Float[Tensor, "b g f"]

    @classmethod
    def from_labels(cls, labels: Labels) -> "ByRegion | None":
        """Label queries by region; None if a region is in several groups. Waits for the device."""
        together = labels.of_group @ labels.from_region  # (b, g, f): number of queries
        counted = int((labels.group >= 0).sum())
        if int(together.sum()) != counted or bool(((together > 0).sum(1) > 1).any()):
            return None
        index = torch.arange(labels.n_regions).expand_as(labels.from_region)
        own_region = torch.where(labels.from_region > 0, index, -1).amax(-1)  # (b, q)
        by_region = replace(labels, group=own_region, n_groups=labels.n_regions)
        return cls(by_region, (together > 0).float())

    def column_sum(self, by_region: Float[Tensor, "b f h k"]) -> Float[Tensor, "b g h k"]:
        by_head = by_region.transpose(1, 2)  # (b, h, f, k)
        return (self.groups[:, None] @ by_head).transpose(1, 2)

    def flow_sum(self, by_region: Float[Tensor, "b f h k"]) -> Float[Tensor, "b h f r"]:
        b, f, h, k = by_region.shape
        rows = by_region.transpose(1, 2).reshape(b, h * f, k)
        return (rows @ self.labels.in_region).view(b, h, f, -1)


@dataclass(frozen=True, eq=False)
class Forward:
    """Visibility and labels of the positions of one forward."""

    visible: Visibility
    labels: Labels
    rows: tuple[int, int]  # range of query rows available to `Captured.rows`
    cached: bool  # earlier rows were computed in earlier forwards
    prompts: Sequence[int] = ()  # numbers of the prompts, unchanged when others end
    # With a cache: number of rows that are never computed again; None: all, as in a causal model.
    settled: int | None = None
    step_kept: bool = True  # drift is measured from one kept step to the next
    partial: bool = False  # an approximate cache left out rows, which have no statistics
    # For a lens: the first position, the row that predicts each position, and which positions are masked.
    predicted: tuple[int, Int[Tensor, " w"], Bool[Tensor, "b w"]] | None = None

    @cached_property
    def _memo(self) -> dict[Hashable, Any]:
        return {}

    def _memoize(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def on(self, device: torch.device) -> "Forward":
        """Return this forward with its tensors on the device; cached by device."""
        if self.labels.region.device == device:
            return self
        return self._memoize(device, lambda: moved(self, device))

    def within(self, reach: int | None) -> "Forward":
        """Return this forward for a layer that sees `reach` positions to either side; cached by reach."""
        visible = self.visible.within(reach)
        if reach is None or visible is self.visible:
            return self
        return self._memoize(("reach", reach), lambda: replace(self, visible=visible))

    def repeated(self, n: int) -> Labels:
        """Return the labels repeated for n layers along the axis of prompts; cached by n."""

        def make() -> Labels:
            group, region = (x.repeat(n, 1) for x in (self.labels.group, self.labels.region))
            return replace(self.labels, group=group, region=region)

        return self._memoize(("layers", n), make)

    @cached_property
    def settling(self) -> Labels:
        """Labels in which only settling rows (never computed again) count."""
        group = self.labels.group.clone()
        group[:, self.settled :] = -1
        return replace(self.labels, group=group)

    @cached_property
    def settled_groups(self) -> Labels:
        """Labels with twice as many groups: settling rows move from group g to group g + `n_groups`."""
        group, n_groups = self.labels.group, self.labels.n_groups
        moved = torch.where(self.settling.group >= 0, group + n_groups, group)
        return replace(self.labels, group=moved, n_groups=2 * n_groups)

    @cached_property
    def by_region(self) -> ByRegion | None:
        """Labels by region, for sums on a CPU; None with a cache, on a GPU, or if groups divide a region."""
        if self.cached or not self.labels.group.is_cpu:
            return None
        return ByRegion.from_labels(self.labels)

    @cached_property
    def max_entropy(self) -> Float[Tensor, "b 1 q"]:
        """ln of the number of visible keys; NaN if only one key is visible, where entropy has no scale."""
        count = self.visible.count
        return torch.where(count > 1, count.float().log(), torch.nan)[:, None]
