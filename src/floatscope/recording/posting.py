"""A step's statistics, posted: on a GPU they are cut into prompts first.

A prompt's part of a batch's statistic has gaps where other columns lie. Cut out on a GPU it has none, and one
copy brings it to its place, which is that of all positions the prompt will have: those it has not come to
are there, with nothing in them. On a CPU parts are written to their places as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from ..attention import Captured
from ..models.placing import constant
from .steps import Form, Places, PromptRecord, Whole, begin, nothing, parts_of, wholes
from .transfer import Outbox


@dataclass(frozen=True, eq=False)
class Cut:
    """Prompts of a batch, next to one another, whose own columns, groups and regions are the same ones."""

    who: slice
    own: slice
    recorded: tuple[PromptRecord, ...]

    def like(self, other: "Cut") -> bool:
        mine, theirs = (
            (one.own, first.size, first.groups, first.regions)
            for one, first in ((self, self.recorded[0]), (other, other.recorded[0]))
        )
        return mine == theirs


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
    """(n, …) of these prompts, as the trace keeps it; where columns are nobody's, with nothing in them and
    in memory of its own."""
    some, one = whole.values[cut.who], cut.recorded[0]
    if whole.form in (Form.GROUPS, Form.COUNTS):
        some = some[:, : one.groups]
    if whole.form is Form.REGIONS:
        at = constant(one.regions, some.device)
        some = some.index_select(-2, at).index_select(-1, at)
    elif whole.form is Form.COUNTS:
        some = some if nobodys is None else some.clone()
    else:
        hidden = None if nobodys is None else nobodys[cut.who, cut.own]
        some = _laid_out(some[..., cut.own], one.size, hidden)
    return some.to(_torch_kind(whole.kind or dtype)).contiguous()


def _laid_out(some: Tensor, size: int, hidden: Bool[Tensor, "n width"] | None) -> Tensor:
    """(n, …, width) in so many columns, with nothing in those that are hidden or missing."""
    width = some.shape[-1]
    if width == size and hidden is None:
        return some
    out = torch.empty((*some.shape[:-1], size), dtype=some.dtype, device=some.device)
    none = _nothing(some.dtype, some.device)
    here = out
    if width < size:
        here = out[..., :width]
        out[..., width:] = none
    if hidden is None:
        here.copy_(some)
    else:
        torch.where(hidden.view(len(hidden), *[1] * (some.ndim - 2), width), none, some, out=here)
    return out


def record(step: int, captured: Captured, places: Places, dtype: np.dtype, outbox: Outbox) -> None:
    """One step of a batch, from its layers."""
    begin(step, places)
    some_cuts = cuts(places)
    for whole in wholes(captured):
        if outbox.cuts and whole.form is not Form.PREDICTED:
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
