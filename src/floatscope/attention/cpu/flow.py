"""Flow from region to region out of column sums, where queries are summed by region.

Σ over the queries of region f and the keys of region r is the same in either order. Column sums by the
queries' regions give it with a small product at the end, and the sums by group as well, if every region's
queries are in one group: then no weight is multiplied with the keys' regions. Nothing here sees weights.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..shapes import Labels


@dataclass(frozen=True, eq=False)
class ByRegion:
    """The same queries, counted by their own region; and which group each region belongs to."""

    labels: Labels
    groups: Float[Tensor, "b g f"]

    @classmethod
    def of(cls, labels: Labels) -> "ByRegion | None":
        """None where the queries of one region are in several groups. Asking waits for the device."""
        together = labels.of_group @ labels.from_region  # (b, g, f): how many
        counted = int((labels.group >= 0).sum())
        if int(together.sum()) != counted or bool(((together > 0).sum(1) > 1).any()):
            return None
        index = torch.arange(labels.n_regions).expand_as(labels.from_region)
        own = torch.where(labels.from_region > 0, index, -1).amax(-1)  # (b, q)
        by_region = replace(labels, group=own, n_groups=labels.n_regions)
        return cls(by_region, (together > 0).float())

    def column_sum(self, by_region: Float[Tensor, "b f h k"]) -> Float[Tensor, "b g h k"]:
        """By group."""
        by_head = by_region.transpose(1, 2)  # (b, h, f, k)
        return (self.groups[:, None] @ by_head).transpose(1, 2)

    def flow_sum(self, by_region: Float[Tensor, "b f h k"]) -> Float[Tensor, "b h f r"]:
        """From region to region."""
        b, f, h, k = by_region.shape
        rows = by_region.transpose(1, 2).reshape(b, h * f, k)
        return (rows @ self.labels.in_region).view(b, h, f, -1)
