"""A step's statistics, posted: what has a number for each position is cut into prompts on the GPU.

A prompt's part of a batch's statistic has gaps where other columns lie. Cut out on a GPU it has none, and one
copy brings it to its place, which is that of all positions the prompt will have: those it has not come to
are there, with nothing in them. On a CPU, and what is small, goes to its place part by part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import Captured
from .steps import Form, Places, PromptRecord, Whole, begin, nothing, parts_of, wholes
from .transfer import Outbox

BY_POSITION = (Form.KEYS, Form.GROUPS)


@dataclass(frozen=True, eq=False)
class Cut:
    """Prompts of a batch, next to one another, whose own columns and groups are the same ones."""

    who: slice
    own: slice
    recorded: tuple[PromptRecord, ...]

    def like(self, other: "Cut") -> bool:
        mine, theirs = self.recorded[0], other.recorded[0]
        return (self.own, mine.size, mine.groups) == (other.own, theirs.size, theirs.groups)


def cuts(places: Places, to_come: bool = False) -> list[Cut]:
    """One for all prompts where they are alike, or one for each. `to_come`: with the columns that a prompt
    has not come to, which the batch has already."""
    every = []
    for b, (recorded, own) in enumerate(places):
        stop = own.start + recorded.size if to_come else own.stop
        every.append(Cut(slice(b, b + 1), slice(own.start, stop), (recorded,)))
    if all(one.like(every[0]) for one in every):
        together = tuple(recorded for recorded, _ in places)
        return [replace(every[0], who=slice(0, len(every)), recorded=together)]
    return every


def piece(
    whole: Whole, cut: Cut, dtype: np.dtype, nobodys: Bool[Tensor, "b k"] | None = None
) -> Tensor:
    """(n, …, size) of these prompts, as the trace keeps it, with nothing in columns that are nobody's."""
    size, some = cut.recorded[0].size, whole.values[cut.who]
    if whole.form is Form.GROUPS:
        some = some[:, : cut.recorded[0].groups]
    some = some[..., cut.own]  # (n, …, width)
    width = some.shape[-1]
    if width < size or nobodys is not None:
        out = torch.empty((*some.shape[:-1], size), dtype=some.dtype, device=some.device)
        none = _nothing(some.dtype, some.device)
        out[..., width:] = none
        if nobodys is None:
            out[..., :width] = some
        else:
            hidden = nobodys[cut.who, cut.own]
            hidden = hidden.view(len(hidden), *[1] * (some.ndim - 2), width)
            torch.where(hidden, none, some, out=out[..., :width])
        some = out
    return some.to(_torch_kind(whole.kind or dtype)).contiguous()


def record(step: int, captured: Captured, places: Places, dtype: np.dtype, outbox: Outbox) -> None:
    """One step of a batch, from its layers."""
    begin(step, places)
    some_cuts = cuts(places)
    for whole in wholes(captured):
        if outbox.cuts and whole.form in BY_POSITION:
            post(whole, some_cuts, dtype, outbox)
        else:
            shape = tuple(whole.values.shape)
            parts = parts_of(whole, shape, places, dtype, captured.first_predicted)
            outbox.post_parts(whole.values, parts)


def post(
    whole: Whole,
    some_cuts: Sequence[Cut],
    dtype: np.dtype,
    outbox: Outbox,
    nobodys: Bool[Tensor, "b k"] | None = None,
) -> None:
    """A step's values leave for their places."""
    kind = whole.kind or dtype
    for cut in some_cuts:
        values = piece(whole, cut, dtype, nobodys)
        shape = tuple(values.shape[1:])
        outbox.post_each(values, [one.slot(whole.name, shape, kind) for one in cut.recorded])


@lru_cache(maxsize=16)
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    value = torch.nan if dtype.is_floating_point else -1
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device=device)


@lru_cache(maxsize=16)
def _torch_kind(kind: np.dtype) -> torch.dtype:
    return torch.from_numpy(nothing(kind)[None]).dtype
