"""What was seen of each prompt: a batch's statistics, step by step, cut into prompts on their way to
the host. Nothing is measured or named here; `assemble` makes datasets of it.

How many steps and positions there can be is known before the first: each statistic has one array
from the beginning, and a step is written into its place. A long trace is in memory once; pages that
no step reaches are never touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import Captured, LayerStatistics, Rows
from ..models.devices import moved
from .transfer import Outbox

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

    def place(
        self, name: str, values: Tensor, kind: np.dtype, by_key: bool, start: int = 0
    ) -> np.ndarray:
        """Where the present step's values go, from position `start`. Others are NaN, numbers −1."""
        shape = tuple(values.shape)
        if name not in self.arrays:
            whole = (*shape[:-1], self.size) if by_key else shape
            self.arrays[name] = np.empty((self.room, *whole), kind)
        here = self.arrays[name][len(self.steps) - 1]
        if not by_key:
            return here
        stop = start + shape[-1]
        here[..., :start] = here[..., stop:] = np.nan if kind.kind == "f" else -1
        return here[..., start:stop]

    def reveal(
        self,
        step: int,
        at: list[tuple[int, int]],
        rows: Rows,
        padding: int,
        dtype: np.dtype,
        outbox: Outbox,
    ) -> None:
        """The rows that predicted the (position, token) pairs revealed at one step."""
        self.events += [(step, position, token) for position, token in at]
        key = torch.where(rows.key >= 0, rows.key - padding, rows.key)
        for name, tensor, kind in (
            ("row_key", key, np.dtype(np.int32)),
            ("row_weight", rows.weight, dtype),
            ("row_flow", rows.flow[..., self.regions], dtype),
        ):
            array = np.empty(tuple(tensor.shape), kind)
            self.event_arrays.setdefault(name, []).append(array)
            outbox.post(tensor, array)


def record(
    step: int,
    captured: Captured,
    places: Sequence[tuple[PromptRecord, slice]],
    dtype: np.dtype,
    outbox: Outbox,
) -> None:
    """One step of a batch; for each of its prompts, where it goes and which columns are its own."""
    labels = captured.labels
    layers = _together(list(captured.layers.values()), labels.region.device)
    for recorded, _ in places:
        recorded.steps.append(step)

    def post(recorded: PromptRecord, name: str, part: Tensor, kind: np.dtype, by_key: bool) -> None:
        outbox.post(part, recorded.place(name, part, kind, by_key))

    def take(name: str, whole: Tensor, kind: np.dtype = dtype) -> None:  # batch first, keys last
        for one, (recorded, own) in zip(whole, places, strict=True):
            post(recorded, name, one[..., own], kind, by_key=True)

    def take_regions(name: str, whole: Tensor) -> None:  # batch first, (from, to) last
        for one, (recorded, _) in zip(whole, places, strict=True):
            own = one[..., recorded.regions, :][..., recorded.regions]
            post(recorded, name, own, dtype, by_key=False)

    def stacked(name: str, axis: int = 1) -> Tensor | None:
        """All layers of a statistic, as a further axis; one statistic at a time is in memory."""
        parts = [getattr(one, name) for one in layers]
        return None if parts[0] is None else torch.stack(parts, dim=axis)

    # (b, r): positions so far in each region, all of which have rows; with a cache that approximates, some.
    of_region = (labels.from_region if captured.partial else labels.in_region).sum(1)
    if (column := stacked("column_sum", 2)) is not None:  # (b, g, layer, h, k)
        counted = _of_groups(of_region.long(), labels.n_groups)
        for one, count, (recorded, own) in zip(column, counted, places, strict=True):
            part, n = one[: recorded.groups], count[: recorded.groups]
            post(recorded, "column_sum", part[..., own], dtype, by_key=True)
            post(recorded, "rows_counted", n, np.dtype(np.int64), by_key=False)
        del column
    for name in ("entropy", "value_norm", "residual_norm", "key_drift", "value_drift"):
        if (whole := stacked(name)) is not None:
            take(name, whole)
    if (ratio := stacked("massive")) is not None and (at := stacked("massive_channel")) is not None:
        take("massive", ratio, _FLOAT)  # may be larger than float16 holds
        take("massive_channel", at, _INT)
    for name, kind in (("expert", _INT), ("expert_weight", dtype)):
        if (choice := _of_experts([getattr(one, name) for one in layers])) is not None:
            take(name, choice, kind)  # (b, layer, choice, k)
    for name in ("lens_token", "lens_probability", "lens_entropy"):
        if (whole := stacked(name)) is not None:  # (b, layer, w): of the positions predicted
            kind = _INT if name == "lens_token" else dtype
            for one, (recorded, own) in zip(whole, places, strict=True):
                start = captured.first_predicted - own.start
                stop = max(own.stop, captured.first_predicted + 1)  # the next one is not there yet
                there = one[..., : stop - captured.first_predicted]
                outbox.post(there, recorded.place(name, there, kind, True, start))
    some = torch.where(of_region > 0, of_region, torch.nan)[:, None, :, None]  # (b, 1, r, 1)
    if (flow := stacked("flow_sum")) is not None:
        take_regions("flow", flow / some[:, None])  # (b, layer, h, r, r)
    if (rollout := stacked("rollout_sum")) is not None:
        take_regions("rollout", rollout / some)  # (b, layer, r, r)
    columns = [one.columns for one in layers if one.columns is not None]
    if columns:
        viewers = torch.stack([c.viewers for c in columns], dim=1)[:, :, None]  # (b, layer, 1, k)
        for name in ("score", "cosine", "query_norm"):
            whole = torch.stack([getattr(c, name) for c in columns], dim=1)  # (b, layer, h, k)
            take(name, whole / viewers)
        take("key_norm", torch.stack([c.key_norm for c in columns], dim=1))


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
