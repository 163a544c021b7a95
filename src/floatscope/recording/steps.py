"""What was seen of each prompt: a batch's statistics, step by step, cut into prompts on their way to
the host. Nothing is measured or named here; `assemble` makes datasets of it.

How many steps and positions there can be is known before the first: each statistic has one array
from the beginning, and a step is written into its place. A long trace is in memory once; pages that
no step reaches are never touched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import Captured, Columns, LayerStatistics
from ..models.devices import moved
from .streaming import Stream
from .transfer import Part, Pick, Slot

_OF_COLUMNS = {f.name for f in fields(Columns)}
_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(eq=False)
class PromptRecord:
    """One prompt: an array per statistic, with room for every kept step."""

    room: int  # steps that may be kept
    size: int  # positions there may be in the end
    groups: int  # of queries: a batch has as many as its richest prompt
    regions: list[int]  # its own regions, in the order of the trace
    steps: list[int] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    events: list[tuple[int, int, int]] = field(default_factory=list)  # step, position, token
    event_arrays: dict[str, list[np.ndarray]] = field(default_factory=dict)
    stale: list[np.ndarray] = field(default_factory=list)  # by kept step: keys that are older
    stream: Stream | None = None  # where steps go instead of into `arrays`
    empty: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty
    tensors: dict[str, Slot] = field(default_factory=dict)  # `arrays`, as tensors

    def place(
        self, name: str, shape: tuple[int, ...], kind: np.dtype, by_key: bool, start: int = 0
    ) -> np.ndarray:
        """Where the present step's values go, from position `start`. Others are NaN, numbers −1."""
        here, *around = self.places(name, shape, kind, by_key, start)
        for other in around:
            other[...] = nothing(kind)
        return here

    def places(
        self, name: str, shape: tuple[int, ...], kind: np.dtype, by_key: bool, start: int = 0
    ) -> list[np.ndarray]:
        """The same, and the places of the others, which nothing is written to yet."""
        whole = (*shape[:-1], self.size) if by_key else shape
        if self.stream is not None:
            here = self.stream.room(name, whole, kind)
        else:
            if name not in self.arrays:
                self.arrays[name] = self.empty((self.room, *whole), kind)
            here = self.arrays[name][len(self.steps) - 1]
        if not by_key:
            return [here]
        stop = start + shape[-1]
        around = [part for part in (here[..., :start], here[..., stop:]) if part.size]
        return [here[..., start:stop], *around]

    def slot(self, name: str, shape: tuple[int, ...], kind: np.dtype) -> Slot:
        """Where the present step's values go, of all positions there may be."""
        if self.stream is not None:
            return Slot(torch.from_numpy(self.stream.room(name, shape, kind)))
        whole = self.tensors.get(name)
        if whole is None:
            array = self.arrays.get(name)
            if array is None:
                array = self.arrays[name] = self.empty((self.room, *shape), kind)
            tensor = torch.from_numpy(array)
            whole = self.tensors[name] = Slot(tensor, _pinned(tensor))
        return Slot(whole.tensor[len(self.steps) - 1], whole.pinned)


def _pinned(tensor: Tensor) -> bool:
    return torch.cuda.is_available() and tensor.is_pinned()


class Form(Enum):
    """What the last axes of a batch's statistic are, and so which part of it is a prompt's."""

    KEYS = "a number for each position"
    GROUPS = "by group, and for each position"
    COUNTS = "a number for each group"
    REGIONS = "from region to region"
    PREDICTED = "a number for each position that a lens was asked for"


@dataclass(frozen=True, eq=False)
class Whole:
    """One statistic of a step: all prompts, all layers; kept as `kind`, the trace's own by default."""

    name: str
    values: Tensor
    form: Form = Form.KEYS
    kind: np.dtype | None = None


def wholes(captured: Captured) -> Iterator[Whole]:
    """Every statistic of a step, one after another: one at a time is in memory."""
    labels = captured.labels
    layers = _together(list(captured.layers.values()), labels.region.device)

    def stacked(name: str) -> Tensor | None:
        known = captured.together
        return stack(layers, name) if known is None else known.get(name)

    # (b, r): positions so far in each region, all of which have rows; with a cache that approximates, some.
    of_region = (labels.from_region if captured.partial else labels.in_region).sum(1)
    if (column := stacked("column_sum")) is not None:  # (b, g, layer, h, k)
        yield Whole("column_sum", column, Form.GROUPS)
        del column
        counted = _of_groups(of_region.long(), labels.n_groups)
        yield Whole("rows_counted", counted, Form.COUNTS, np.dtype(np.int64))
    for name in ("entropy", "value_norm", "residual_norm", "key_drift", "value_drift"):
        if (whole := stacked(name)) is not None:
            yield Whole(name, whole)
    if (ratio := stacked("massive")) is not None and (at := stacked("massive_channel")) is not None:
        yield Whole("massive", ratio, kind=_FLOAT)  # may be larger than float16 holds
        yield Whole("massive_channel", at, kind=_INT)
    for name, kind in (("expert", _INT), ("expert_weight", None)):
        if (choice := _of_experts([getattr(one, name) for one in layers])) is not None:
            yield Whole(name, choice, kind=kind)  # (b, layer, choice, k)
    for name in ("lens_token", "lens_probability", "lens_entropy"):
        if (whole := stacked(name)) is not None:  # (b, layer, w): of the positions predicted
            yield Whole(name, whole, Form.PREDICTED, _INT if name == "lens_token" else None)
    some = torch.where(of_region > 0, of_region, torch.nan)[:, None, :, None]  # (b, 1, r, 1)
    if (flow := stacked("flow_sum")) is not None:
        yield Whole("flow", flow / some[:, None], Form.REGIONS)  # (b, layer, h, r, r)
    if (rollout := stacked("rollout_sum")) is not None:
        yield Whole("rollout", rollout / some, Form.REGIONS)  # (b, layer, r, r)
    if (viewers := stacked("viewers")) is not None:  # (b, layer, k)
        for name in ("score", "cosine", "query_norm"):
            if (whole := stacked(name)) is not None:  # (b, layer, h, k)
                yield Whole(name, whole / viewers[:, :, None])
        if (norms := stacked("key_norm")) is not None:
            yield Whole("key_norm", norms)


def stack(layers: Sequence[LayerStatistics], name: str) -> Tensor | None:
    """All layers of a statistic, as a further axis: behind the prompts, and the groups if there are any."""
    if name in _OF_COLUMNS:
        parts = [getattr(one.columns, name) for one in layers if one.columns is not None]
    else:
        parts = [getattr(one, name) for one in layers if getattr(one, name) is not None]
    return torch.stack(parts, dim=2 if name == "column_sum" else 1) if parts else None


Places = Sequence[tuple[PromptRecord, slice]]  # where a prompt goes, and which columns are its own


def begin(step: int, places: Places) -> None:
    """The prompts have a further step."""
    for recorded, _ in places:
        recorded.steps.append(step)
        if recorded.stream is not None:
            recorded.stream.begin(step)


def parts_of(
    whole: Whole, shape: tuple[int, ...], places: Places, dtype: np.dtype, first_predicted: int
) -> list[Part]:
    """Each prompt's part of a statistic of this shape, and its place in the present step."""
    kind, found = whole.kind or dtype, []
    for b, (recorded, own) in enumerate(places):
        part, pick = part_of(whole.form, shape, b, recorded, own, first_predicted)
        by_key = whole.form in (Form.KEYS, Form.GROUPS, Form.PREDICTED)
        start = first_predicted - own.start if whole.form is Form.PREDICTED else 0
        here, *around = recorded.places(whole.name, part, kind, by_key, start)
        found += [(pick, here), *filled(kind, around)]
    return found


def filled(kind: np.dtype, places: Sequence[np.ndarray]) -> list[Part]:
    """Nothing, for these places. Left to whoever moves the values: memory that is written to for the first
    time is slow."""
    return [(partial(_always, nothing(kind)), place) for place in places]


def _always(value: np.ndarray, _: np.ndarray) -> np.ndarray:
    return value


def nothing(kind: np.dtype) -> np.ndarray:
    """What stands where no value is."""
    return np.array(np.nan if kind.kind == "f" else -1, kind)


def part_of(
    form: Form,
    shape: tuple[int, ...],
    b: int,
    recorded: PromptRecord,
    own: slice,
    first_predicted: int = 0,
) -> tuple[tuple[int, ...], Pick]:
    """Which part of a batch's statistic of this shape is prompt b's: its shape, and how it is picked."""
    groups, regions = recorded.groups, recorded.regions
    width = min(shape[-1], own.stop) - own.start
    if form is Form.GROUPS:
        few = min(shape[1], groups)
        return (few, *shape[2:-1], width), lambda values: values[b, :groups][..., own]
    if form is Form.COUNTS:
        return (min(shape[1], groups),), lambda values: values[b, :groups]
    if form is Form.REGIONS:
        n = len(regions)
        return (*shape[1:-2], n, n), lambda values: values[b][..., regions, :][..., regions]
    if form is Form.PREDICTED:
        n = max(own.stop - first_predicted, 1)  # the next one is not there yet
        return (*shape[1:-1], min(shape[-1], n)), lambda values: values[b][..., :n]
    return (*shape[1:-1], width), lambda values: values[b][..., own]


def _together(layers: list[LayerStatistics], device: torch.device) -> list[LayerStatistics]:
    """On one device, where the layers lie on several; what rows are computed from stays where it is."""

    def elsewhere(one: LayerStatistics) -> bool:
        return any(isinstance(v, Tensor) and v.device != device for v in vars(one).values())

    if not any(map(elsewhere, layers)):
        return layers
    return [moved(replace(one, held=None, candidates=None), device) for one in layers]


def _of_experts(parts: list[Tensor | None]) -> Tensor | None:
    """All layers; one without experts, among others with them, has none: NaN, numbers −1."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    nothing = torch.full_like(some, torch.nan if some.is_floating_point() else -1)
    return torch.stack([nothing if part is None else part for part in parts], dim=1)


def _of_groups(of_region: Int[Tensor, "b r"], n_groups: int) -> Int[Tensor, "b g"]:
    """How many queries so far are in each group: regions, or masked, revealed, prompt, or all."""
    if n_groups == of_region.shape[1]:
        return of_region
    heads, rest = of_region[:, : n_groups - 1], of_region[:, n_groups - 1 :]
    return torch.cat([heads, rest.sum(1, keepdim=True)], dim=1)
