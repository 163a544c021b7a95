"""The sums of few rows on a GPU, as a step with a KV cache has them: launches `few_kernels`.

Attention's forward keeps no log-sum-exp for few rows, and kernels made for many would each compute the same
product. Here the logarithms of the weights are written once, (b, h, q, k) numbers, and everything is taken
from them: four launches in a layer.
"""

from dataclasses import dataclass, replace
from types import ModuleType

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from ..statistics import Labels, Sums, View
from .fused import Launch
from .plan import plan_of
from .strongest import find, powers

_NUMBERS = 8192  # that a program holds at once
_COLUMNS = 256


def _kernels() -> ModuleType:
    from . import few_kernels

    return few_kernels


@dataclass(frozen=True, eq=False)
class Few:
    """What was taken from the rows of one layer; the strongest keys, last, use the logarithms up."""

    labels: Labels  # for which it was
    sums: Sums
    power: Float[Tensor, "bh q blocks size"]
    peak: Float[Tensor, "bh q blocks"]

    def strongest(
        self, start: int, stop: int, top: int
    ) -> tuple[Int32[Tensor, "b h w t"], Float[Tensor, "b h w t"]]:
        """As `strongest.strongest`, once."""
        b, h = self.sums.column_sum.shape[0], self.sums.column_sum.shape[2]
        power, peak = self.power[:, start:stop], self.peak[:, start:stop]
        key, weight = find(power.contiguous(), peak.contiguous(), top)
        return key.unflatten(0, (b, h)), weight.unflatten(0, (b, h))


def measured(view: View) -> View:
    """The view with its log-sum-exp and all that can be summed of it."""
    b, h, n_query, _ = view.query.shape
    n_key, labels, device = view.key.shape[2], view.labels, view.query.device
    nothing = plan_of(labels, view.visible, view.ruled).nothing((b, h, n_query))
    launch = Launch(replace(view, lse=nothing))
    power, peak = powers(launch)
    n_blocks, block = power.shape[2:]
    beside = [labels.in_region, *([] if view.state is None else [view.state.float()])]
    wide = max(2, 1 << (sum(one.shape[-1] for one in beside) - 1).bit_length())
    values = launch.plan.side_by_side(beside, n_key, wide, torch.float32)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    lse, entropy = empty(b, h, n_query), empty(b, h, n_query)
    weighted = empty(b, h, n_query, wide)
    _kernels().few_rows[(b * h * n_query,)](
        *(power, peak, values, launch.plan.group, lse, entropy, weighted),
        *(h, n_query, n_key, n_blocks, n_key),
        VALUES=wide,
        BLOCK=block,
        TILE=max(16, min(1024, _NUMBERS // wide)),
    )
    groups = launch.plan.n_groups
    column = empty(b, groups, h, n_key)
    _kernels().few_columns[(-(-n_key // _COLUMNS), b * h)](
        *(power, launch.plan.group, launch.plan.padding, column),
        *(h, n_query, n_key, groups, n_blocks * block),
        TILE=_COLUMNS,
    )
    n = labels.n_regions
    rolled = None
    if view.state is not None:
        rolled = weighted[..., n : n + view.state.shape[-1]].mean(1)
    sums = Sums(column, entropy, weighted[..., :n], rolled)
    return replace(view, lse=lse, few=Few(labels, sums, power, peak))
