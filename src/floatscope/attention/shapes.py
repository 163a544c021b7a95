"""Data types for the attention of one layer in one forward and for the arrays measured from it.

`reference` and `cpu.blocked` compute Arrays from a View. Every row (query) has a group and every key has a
region. Group and region −1 are padding, which never counts.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..models import Visibility, attention_hook


@dataclass(frozen=True, eq=False)
class Labels:
    """Group of each query and region of each key in one forward, shared by all layers."""

    group: Int[Tensor, "b q"]
    n_groups: int
    region: Int[Tensor, "b k"]
    n_regions: int
    first: int | None = None  # column of the first query; by default they are the last positions
    columns: Int[Tensor, " q"] | None = None  # column of every query, if known on the device

    @cached_property
    def of_group(self) -> Float[Tensor, "b g q"]:
        """Indicator of each group's queries."""
        return one_hot(self.group, self.n_groups).mT.contiguous()

    @cached_property
    def in_region(self) -> Float[Tensor, "b k r"]:
        """Indicator of each key's region."""
        return one_hot(self.region, self.n_regions)

    @cached_property
    def by_region(self) -> Float[Tensor, "b r k"]:
        """Indicator of each region's keys."""
        return self.in_region.mT.contiguous()

    @cached_property
    def one_group(self) -> bool:
        """Whether all queries count and are in one group. Waits for the device."""
        return self.n_groups == 1 and bool((self.group >= 0).all())

    @cached_property
    def every_key(self) -> bool:
        """Whether every key is in a region. Waits for the device."""
        return bool((self.region >= 0).all())

    @cached_property
    def from_region(self) -> Float[Tensor, "b q r"]:
        """Indicator of the region of each counted query."""
        if self.columns is not None:
            return self.in_region.index_select(1, self.columns) * (self.group >= 0)[..., None]
        n = self.group.shape[1]
        start = self.region.shape[1] - n if self.first is None else self.first
        query_region = self.in_region[:, start : start + n]
        return query_region if self.first is None else query_region * (self.group >= 0)[..., None]

    @cached_property
    def counted(self) -> Float[Tensor, "b 1 q 1"]:
        """Indicator of the queries included in the sums (group ≥ 0)."""
        return (self.group >= 0).float()[:, None, :, None]

    @cached_property
    def real(self) -> Float[Tensor, "b 1 k"]:
        """Indicator of the keys that are not padding."""
        return (self.region >= 0).float()[:, None]

    @cached_property
    def counting(self) -> Int[Tensor, "b k"]:
        """Number of counted queries, for every key that is not padding."""
        return (self.group >= 0).sum(1, keepdim=True) * (self.region >= 0)


def exactly(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context in which autocast is off on the tensor's device."""
    kind = tensor.device.type
    on = torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def one_hot(index: Int[Tensor, "b n"], size: int) -> Float[Tensor, "b n s"]:
    """Return, for each index, a row of zeros with 1 at the index; for −1, a row of zeros."""
    return (index[..., None] == torch.arange(size, device=index.device)).float()


def _is_default(mask: Tensor | None, visible: Visibility) -> bool:
    """Return whether the mask follows from direction and padding alone, not from an intervention."""
    if visible.reach is not None:
        return False
    default = visible.mask
    if mask is None or default is None or mask is default:
        return mask is None or mask is default
    return mask.data_ptr() == default.data_ptr() and mask.shape == default.shape


@dataclass(frozen=True, eq=False)
class View:
    """Attention inputs of one layer, with q and k as the attention hook receives them."""

    query: Float[Tensor, "b h q d"]
    key: Float[Tensor, "b kv k d"]
    scale: float
    mask: Bool[Tensor, "#b #h q k"] | None  # None: no mask beyond `causal`
    causal: bool
    visible: Visibility
    labels: Labels
    lse: Float[Tensor, "b h q"] | None = None  # log-sum-exp of the scaled scores, where known
    state: Float[Tensor, "b k r"] | None = None  # the rollout of the layers below
    bias: Float[Tensor, "b h 1 k"] | None = None  # an intervention's, added to the scaled scores
    few_sums: "FewRowSums | None" = None  # on a GPU with few rows: computed with the log-sum-exp

    @classmethod
    def from_call(
        cls,
        call: attention_hook.Call,
        visible: Visibility,
        labels: Labels,
        lse: Tensor | None = None,
        state: Tensor | None = None,
    ) -> "View":
        """Create a view from a call at the attention hook."""
        mask = call.mask
        if visible.direction.in_blocks and _is_default(mask, visible) and visible.sees_all:
            mask = None  # the mask hides no key
        qk = (call.query, call.key, call.scale, mask, call.causal)
        bias = None if call.bias is None else call.bias.float()
        return cls(*qk, visible, labels, lse, state, bias)

    @property
    def ruled(self) -> bool:
        """Whether visibility follows from direction and padding alone."""
        return _is_default(self.mask, self.visible)


# Results of a back end for one layer: tensors by name. Statistics have the names of
# `floatscope.statistics`; the other tensors are parts of a statistic. Only requested tensors are included.
#
#   of the weights     column_sum (b, g, h, k)  Σ A_ij over the queries of each group
#                      entropy (b, h, q)        −Σ A ln A, in nats
#                      region_sum (b, h, q, r)  Σ A_ij over the keys of each region
#                      rolled (b, q, r)         head mean of A · state
#   of q and k alone   score, cosine, query_norm (b, h, k)  summed over the counted queries that see the key
#                      key_norm (b, h, k)       the norm itself
#                      viewers (b, k)           number of those queries
Arrays = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class FewRowSums:
    """Sums of few rows, computed together on a GPU. `few.strongest` overwrites `power`."""

    labels: Labels  # labels for which the sums were computed
    arrays: Arrays
    power: Float[Tensor, "bh q blocks size"]  # log2 of the weights
    peak: Float[Tensor, "bh q blocks"]  # the maximum of each block of keys
