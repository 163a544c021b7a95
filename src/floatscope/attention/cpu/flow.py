"""Flow between regions from column sums whose queries are grouped by region.

The sum over the queries of region f and the keys of region r can be taken in either order. Column sums by
the queries' regions give the flow by a small product at the end. If the queries of each region are in one
group, they also give the sums by group. Then no weight is multiplied with the keys' regions.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..shapes import Labels


@dataclass(frozen=True, eq=False)
class ByRegion:
    """Labels that group the queries by region, and the group to which each region belongs."""

    labels: Labels
    groups: Float[Tensor, "b g f"]

    @classmethod
    def of(cls, labels: Labels) -> "ByRegion | None":
        """Make the labels; None if the queries of one region are in several groups. Waits for the device."""
        together = labels.of_group @ labels.from_region  # (b, g, f): how many
        counted = int((labels.group >= 0).sum())
        if int(together.sum()) != counted or bool(((together > 0).sum(1) > 1).any()):
            return None
        index = torch.arange(labels.n_regions).expand_as(labels.from_region)
        own = torch.where(labels.from_region > 0, index, -1).amax(-1)  # (b, q)
        by_region = replace(labels, group=own, n_groups=labels.n_regions)
        return cls(by_region, (together > 0).float())

    def column_sum(self, by_region: Float[Tensor, "b f h k"]) -> Float[Tensor, "b g h k"]:
        """Return the column sums by group."""
        by_head = by_region.transpose(1, 2)  # (b, h, f, k)
        return (self.groups[:, None] @ by_head).transpose(1, 2)

    def flow_sum(self, by_region: Float[Tensor, "b f h k"]) -> Float[Tensor, "b h f r"]:
        """Return the sums from region to region."""
        b, f, h, k = by_region.shape
        rows = by_region.transpose(1, 2).reshape(b, h * f, k)
        return (rows @ self.labels.in_region).view(b, h, f, -1)
