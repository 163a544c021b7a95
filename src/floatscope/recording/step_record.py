"""A step record: what one forward says about one prompt. Built here, for every way a model is run.

The arrays of a batch are put together over layers, joined with earlier rows where a cache keeps those,
divided, and cut into prompts, with room for all positions a prompt may come to have. All on the device.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import Captured, Labels
from ..attention.captured import Layer
from ..models.placing import constant
from ..statistics import STATISTICS, Array, Join
from .sums import Joining

Values = Iterable[tuple[Array, Tensor]]  # arrays of a batch, (b, *dims) each


@dataclass(frozen=True, eq=False)
class StepRecord:
    """What one forward says about one prompt.

    Attributes:
        step: number of the forward in the decoding, from 0.
        canvas: token ids of its input, without padding.
        values: arrays by name, (*dims) as in `floatscope.statistics`, on the model's device. Positions
            that do not exist yet are NaN, or −1 for integers.
    """

    step: int
    canvas: Int[Tensor, " k"]
    values: dict[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class Consumer(Protocol):
    """A receiver of the step records of one prompt, in order."""

    def step(self, record: StepRecord) -> None: ...

    def finish(self) -> None:
        """Finish: no more steps follow."""


@dataclass(frozen=True)
class Shape:
    """The part of a batch that belongs to one prompt.

    Attributes:
        size: largest number of positions that it may get.
        regions: numbers of its regions in the batch, in the order of the trace.
        groups: number of its query groups; a batch has as many as the prompt with the most.
        region_names, group_names: names of regions and groups. Prompts that differ only in names have
            equal shapes.
    """

    size: int
    regions: tuple[int, ...]
    groups: int
    region_names: tuple[str, ...] = field(compare=False)
    group_names: tuple[str, ...] = field(compare=False)


def batch_values(captured: Captured, join: Joining) -> Iterator[tuple[Array, Tensor]]:
    """Yield every array of a step for the whole batch, one at a time to save memory."""
    labels, arrays = captured.labels, STATISTICS.arrays()
    layers, settled = list(captured.layers.values()), list((captured.settled or {}).values())
    there = {name for layer in layers for name in layer.values}
    # (b, r): positions so far in each region, all of which have rows; with a cache that approximates, some.
    of_region = (labels.from_region if captured.partial else labels.in_region).sum(1)
    rows = torch.where(of_region > 0, of_region, torch.nan)[:, None, :, None]  # (b, 1, r, 1)
    divide, divisors = {array.over for array in arrays.values()}, dict[str, Tensor]()
    for array in arrays.values():
        if array.name == "rows_counted" and {"column_sum", "column_mean"} & there:
            yield array, _of_groups(of_region.long(), labels)
        whole = _together(array, layers, labels)
        if whole is None:
            continue
        whole = join(array, whole, _together(array, settled, labels))
        if array.name in divide:
            divisors[array.name] = whole
        if not array.stored:
            continue
        if array.over == "source":
            whole = whole / (rows[:, None] if "head" in array.dims else rows)
        elif array.over is not None:
            divisor = divisors[array.over]  # (b, layer, k) for all heads, or as the array itself
            shared = "head" in array.dims and divisor.ndim < whole.ndim
            whole = whole / (divisor[:, :, None] if shared else divisor)
        yield array, whole


def _together(array: Array, layers: Sequence[Layer], labels: Labels) -> Tensor | None:
    """Stack an array of all layers, (b, *dims); None if no layer has it. A layer without it is NaN or −1."""
    some = [layer.values[array.name] for layer in layers if array.name in layer.values]
    if not some:
        return None
    nothing = some[0]
    if len(some) < len(layers):
        nothing = torch.full_like(some[0], torch.nan if some[0].is_floating_point() else -1)
    parts = [layer.values.get(array.name, nothing).to(labels.region.device) for layer in layers]
    return torch.stack(parts, dim=array.layer_axis)


def all_layers(captured: Captured) -> dict[str, Tensor]:
    """Return the arrays of a forward that later rows may join, all layers together."""
    layers = list(captured.layers.values())
    arrays = [array for array in STATISTICS.arrays().values() if array.join is not Join.LATEST]
    whole = {array.name: _together(array, layers, captured.labels) for array in arrays}
    return {name: values for name, values in whole.items() if values is not None}


def _of_groups(of_region: Int[Tensor, "b r"], labels: Labels) -> Int[Tensor, "b g"]:
    """Count the queries of each group: by region; or masked, revealed and prompt; or all together."""
    last = labels.n_groups - 1
    if last + 1 == of_region.shape[1]:
        return of_region
    return torch.cat([of_region[:, :last], of_region[:, last:].sum(1, keepdim=True)], dim=1)


Places = Sequence[tuple[Shape, slice]]  # of each prompt of a batch: its shape, and its own columns


def step_records(
    step: int,
    canvas: Int[Tensor, "b s"],
    values: Values,
    places: Places,
    dtype: torch.dtype,
    first_predicted: int = 0,
    nobodys: Bool[Tensor, "b k"] | None = None,
) -> list[StepRecord]:
    """Split a step of a batch into one record per prompt.

    Args:
        step: number of the step.
        canvas: tokens before the step, with padding.
        values: arrays of the batch, from `batch_values`.
        places: shape and columns of each prompt.
        dtype: dtype of arrays that define none.
        first_predicted: column of the first position that a lens predicts.
        nobodys: columns of no prompt (padding, unfilled cache columns), for values that the next forward
            overwrites. The records are then copies.
    """
    records = [StepRecord(step, canvas[b, own]) for b, (_, own) in enumerate(places)]
    cuts = _cuts(tuple((shape, own.start, own.stop) for shape, own in places), nobodys is not None)
    for array, whole in values:
        for cut in cuts:
            piece = _piece(array, whole, cut, dtype, first_predicted, nobodys)
            for record, part in zip(records[cut[0]], piece, strict=True):
                record.values[array.name] = part
    return records


Cut = tuple[slice, slice, Shape]  # prompts of a batch, their own columns, and their shape


@lru_cache(64)  # a step has the prompts that the step before had
def _cuts(places: tuple[tuple[Shape, int, int], ...], to_come: bool) -> list[Cut]:
    """Cut a batch into prompts, or leave it whole where they are alike.

    `to_come`: include the columns that a prompt has not reached, if the batch has them already.
    """
    found = [
        (slice(b, b + 1), slice(start, start + shape.size if to_come else stop), shape)
        for b, (shape, start, stop) in enumerate(places)
    ]
    if all(one[1:] == found[0][1:] for one in found):
        return [(slice(0, len(found)), *found[0][1:])]
    return found


def _piece(
    array: Array,
    whole: Tensor,
    cut: Cut,
    dtype: torch.dtype,
    first_predicted: int,
    nobodys: Bool[Tensor, "b k"] | None,
) -> Tensor:
    """Cut the part of n prompts with equal shapes from a batch: (n, *dims), in the trace's dtype."""
    who, own, shape = cut
    some = whole[who]
    if "group" in array.dims:
        some = some[:, : shape.groups]
    if array.predicted:
        behind = first_predicted - own.start
        some = some[..., : max(own.stop - first_predicted, 1)]  # the next one is not there yet
        some = _laid_out(some, shape.size, None, behind)
    elif array.by_position:
        hidden = None if nobodys is None else nobodys[who, own]
        some = _laid_out(some[..., own], shape.size, hidden)
    for axis, dim in enumerate(array.dims, start=1):
        if dim in ("source", "target"):
            some = some.index_select(axis, constant(shape.regions, some.device))
    if nobodys is not None and (array.predicted or not array.by_position):
        some = some.clone()
    kind = dtype if array.dtype is None else getattr(torch, array.dtype)
    some = some.to(kind)
    return some.contiguous() if some.is_cuda else some  # a GPU sends what has no gaps


def _laid_out(some: Tensor, size: int, hidden: Tensor | None, behind: int = 0) -> Tensor:
    """Pad (n, …, width) to `size` columns from column `behind` on; hidden and missing ones are NaN or −1."""
    width = some.shape[-1]
    if width == size and hidden is None and not behind:
        return some
    out = some.new_empty((*some.shape[:-1], size))
    nothing = _nothing(some.dtype, some.device)
    out[..., :behind] = nothing
    out[..., behind + width :] = nothing
    here = out[..., behind : behind + width]
    if hidden is None:
        here.copy_(some)
    else:
        by_column = hidden.view(len(hidden), *[1] * (some.ndim - 2), width)
        torch.where(by_column, nothing, some, out=here)
    return out


@lru_cache(maxsize=16)
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    value = torch.nan if dtype.is_floating_point else -1
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device=device)
