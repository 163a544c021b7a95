"""Build the step records of one forward, one record per prompt.

The arrays of a batch are stacked over layers, joined with the rows of earlier forwards if a cache keeps these
rows, divided by the number of rows, and cut into one part per prompt. Each part has room for all positions
that its prompt may reach. All of this runs on the device.
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
    """The statistics of one forward for one prompt.

    Attributes:
        step: number of the forward in the decoding, from 0.
        canvas: token ids of the forward's input, without padding.
        values: arrays by name, (*dims) as in `floatscope.statistics`, on the model's device. Values at
            positions that do not exist yet are NaN, or −1 for integers.
    """

    step: int
    canvas: Int[Tensor, " k"]
    values: dict[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class Consumer(Protocol):
    """Receiver of the step records of one prompt, in order."""

    def step(self, record: StepRecord) -> None: ...

    def finish(self) -> None:
        """Complete the output after the last step."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one prompt's arrays, and the parts of a batch that belong to the prompt.

    Attributes:
        size: largest number of positions that the prompt and its answer may have.
        regions: numbers of the prompt's regions in the batch, in the order of the trace.
        groups: number of the prompt's query groups; a batch has as many groups as the prompt with the most
            groups.
        region_names, group_names: names of regions and groups. Prompts that differ only in these names have
            equal shapes.
    """

    size: int
    regions: tuple[int, ...]
    groups: int
    region_names: tuple[str, ...] = field(compare=False)
    group_names: tuple[str, ...] = field(compare=False)


def batch_values(captured: Captured, join: Joining) -> Iterator[tuple[Array, Tensor]]:
    """Yield every array of a step, (b, *dims), for the whole batch, one at a time to save memory.

    `join` adds the rows of earlier forwards. Sums by source are divided by the number of rows of the source,
    and arrays with a divisor by this divisor.
    """
    labels, arrays = captured.labels, STATISTICS.arrays()
    layers, settled = list(captured.layers.values()), list((captured.settled or {}).values())
    names = {name for layer in layers for name in layer.values}
    # (b, r): rows in each region. Every position so far has one, except with an approximate cache.
    of_region = (labels.from_region if captured.partial else labels.in_region).sum(1)
    rows = torch.where(of_region > 0, of_region, torch.nan)[:, None, :, None]  # (b, 1, r, 1)
    divide, divisors = {array.over for array in arrays.values()}, dict[str, Tensor]()
    for array in arrays.values():
        if array.name == "rows_counted" and {"column_sum", "column_mean"} & names:
            yield array, _count_queries(of_region.long(), labels)
        values = _stack_layers(array, layers, labels)
        if values is None:
            continue
        values = join(array, values, _stack_layers(array, settled, labels))
        if array.name in divide:
            divisors[array.name] = values
        if not array.stored:
            continue
        if array.over == "source":
            values = values / (rows[:, None] if "head" in array.dims else rows)
        elif array.over is not None:
            divisor = divisors[array.over]  # (b, layer, k) for all heads, or the shape of the array
            shared = "head" in array.dims and divisor.ndim < values.ndim
            values = values / (divisor[:, :, None] if shared else divisor)
        yield array, values


def _stack_layers(array: Array, layers: Sequence[Layer], labels: Labels) -> Tensor | None:
    """Return an array stacked over layers, (b, *dims), or None; layers without it are NaN or −1."""
    present = [layer.values[array.name] for layer in layers if array.name in layer.values]
    if not present:
        return None
    nothing = present[0]
    if len(present) < len(layers):
        nothing = torch.full_like(present[0], torch.nan if present[0].is_floating_point() else -1)
    parts = [layer.values.get(array.name, nothing).to(labels.region.device) for layer in layers]
    return torch.stack(parts, dim=array.layer_axis)


def all_layers(captured: Captured) -> dict[str, Tensor]:
    """Return the arrays of a forward, stacked over layers, to which later forwards may add rows."""
    layers = list(captured.layers.values())
    arrays = [array for array in STATISTICS.arrays().values() if array.join is not Join.LATEST]
    stacked = {array.name: _stack_layers(array, layers, captured.labels) for array in arrays}
    return {name: values for name, values in stacked.items() if values is not None}


def _count_queries(of_region: Int[Tensor, "b r"], labels: Labels) -> Int[Tensor, "b g"]:
    """Return the number of queries in each group, from the numbers of queries in each region."""
    last = labels.n_groups - 1
    if last + 1 == of_region.shape[1]:
        return of_region
    return torch.cat([of_region[:, :last], of_region[:, last:].sum(1, keepdim=True)], dim=1)


Places = Sequence[tuple[Shape, slice]]  # by prompt: shape and columns


def step_records(
    step: int,
    canvas: Int[Tensor, "b s"],
    values: Values,
    places: Places,
    dtype: torch.dtype,
    first_predicted: int = 0,
    unused: Bool[Tensor, "b k"] | None = None,
) -> list[StepRecord]:
    """Split a step of a batch into one record per prompt.

    Args:
        step: number of the step.
        canvas: tokens before the step, with padding.
        values: arrays of the batch, from `batch_values`.
        places: shape and columns of each prompt.
        dtype: dtype of arrays that do not define their own dtype.
        first_predicted: column of the first position that a lens predicts.
        unused: columns that belong to no prompt (padding, unfilled cache columns). Given if the next forward
            overwrites the values; the records are then copies.
    """
    records = [StepRecord(step, canvas[b, columns]) for b, (_, columns) in enumerate(places)]
    cuts = _cuts(
        tuple((shape, columns.start, columns.stop) for shape, columns in places),
        unused is not None,
    )
    for array, batch in values:
        for cut in cuts:
            piece = _cut_piece(array, batch, cut, dtype, first_predicted, unused)
            for record, part in zip(records[cut[0]], piece, strict=True):
                record.values[array.name] = part
    return records


Cut = tuple[slice, slice, Shape]  # prompts, their columns and their shape


@lru_cache(64)  # steps mostly have the same prompts
def _cuts(places: tuple[tuple[Shape, int, int], ...], to_come: bool) -> list[Cut]:
    """Return one cut per prompt, or a single cut if all prompts have equal shape and columns.

    If `to_come` is true, a cut includes the columns that its prompt has not reached yet.
    """
    cuts = [
        (slice(b, b + 1), slice(start, start + shape.size if to_come else stop), shape)
        for b, (shape, start, stop) in enumerate(places)
    ]
    if all(cut[1:] == cuts[0][1:] for cut in cuts):
        return [(slice(0, len(cuts)), *cuts[0][1:])]
    return cuts


def _cut_piece(
    array: Array,
    batch: Tensor,
    cut: Cut,
    dtype: torch.dtype,
    first_predicted: int,
    unused: Bool[Tensor, "b k"] | None,
) -> Tensor:
    """Return the part (n, *dims) of an array that belongs to the n prompts of a cut, in its stored dtype."""
    prompts, columns, shape = cut
    values = batch[prompts]
    if "group" in array.dims:
        values = values[:, : shape.groups]
    if array.predicted:
        behind = first_predicted - columns.start
        # without positions that do not exist yet
        values = values[..., : max(columns.stop - first_predicted, 1)]
        values = _pad_columns(values, shape.size, None, behind)
    elif array.by_position:
        hidden = None if unused is None else unused[prompts, columns]
        values = _pad_columns(values[..., columns], shape.size, hidden)
    for axis, dim in enumerate(array.dims, start=1):
        if dim in ("source", "target"):
            values = values.index_select(axis, constant(shape.regions, values.device))
    if unused is not None and (array.predicted or not array.by_position):
        values = values.clone()
    kind = dtype if array.dtype is None else getattr(torch, array.dtype)
    values = values.to(kind)
    return values.contiguous() if values.is_cuda else values  # copies from a GPU must be contiguous


def _pad_columns(values: Tensor, size: int, hidden: Tensor | None, behind: int = 0) -> Tensor:
    """Place values (n, …, width) in `size` columns, from column `behind` on; fill the rest with NaN or −1.

    Columns marked in `hidden` (n, width) are also filled with NaN or −1.
    """
    width = values.shape[-1]
    if width == size and hidden is None and not behind:
        return values
    out = values.new_empty((*values.shape[:-1], size))
    nothing = _nothing(values.dtype, values.device)
    out[..., :behind] = nothing
    out[..., behind + width :] = nothing
    target = out[..., behind : behind + width]
    if hidden is None:
        target.copy_(values)
    else:
        by_column = hidden.view(len(hidden), *[1] * (values.ndim - 2), width)
        torch.where(by_column, nothing, values, out=target)
    return out


@lru_cache(maxsize=16)
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    value = torch.nan if dtype.is_floating_point else -1
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device=device)
