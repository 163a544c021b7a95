"""Regions as categories that every prompt shares, so that examples can be averaged.

Prompts differ in how many passages they hold and which is gold; what can be averaged is: the gold
passage, the other passages, the question, the instruction, the template, the answer. This file names
and counts; it measures nothing. A category that a prompt lacks is NaN, not zero.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool

from ..errors import UsageError
from ..trace import Trace
from .nulls import MASKED, REVEALED, names, tokens

GOLD, OTHERS, UNKNOWN = "gold", "other passages", "passages"
# "passages": those of a prompt that names no gold. "rest": parts with any other name.
CATEGORIES = (GOLD, OTHERS, UNKNOWN, "question", "instruction", "template", "answer", "rest")

SERIES = (0, 1, 2, 4, 5, 6, 8, 9)  # how figures draw them: none dotted, as nulls are


def gold_of(trace: Trace) -> str | None:
    """The gold region, where the trace names one and it has tokens."""
    gold = str(trace.info.get("gold", ""))
    return gold if gold and gold in names(trace) else None


def passages_of(trace: Trace) -> list[str]:
    """The passages, in the order in which they stand."""
    return [n for n in names(trace) if n.startswith("passage ")]


def category_of(name: str, gold: str | None) -> str:
    if name == gold:
        return GOLD
    if name.startswith("passage "):
        return UNKNOWN if gold is None else OTHERS
    if name in (MASKED, REVEALED):
        return "answer"
    return name if name in ("question", "instruction", "template") else "rest"


def from_sources(array: xr.DataArray, trace: Trace, sources: Sequence[str]) -> xr.DataArray:
    """Average over the rows of several source regions, then over the steps that have any."""
    known = names(trace)
    unknown = [s for s in sources if s not in known]
    if unknown or not sources:
        raise UsageError(f"no region {(*unknown, '')[0]!r}", f"This trace has: {', '.join(known)}.")
    at = [known.index(s) for s in sources]
    weight = xr.DataArray(tokens(trace)[:, at], dims=("step", "source"))
    total = weight.sum("source")
    rows = (array.isel(source=at).fillna(0) * weight).sum("source") / total.where(total > 0)
    return rows.mean("step")


def by_category(flow: xr.DataArray, trace: Trace) -> xr.DataArray:
    """Sums over `target` within each category: `target` becomes `category`, all of them, in order."""
    gold = gold_of(trace)
    of = np.array([category_of(str(t), gold) for t in flow["target"].values])
    axis, values = flow.get_axis_num("target"), flow.values
    rest = flow.isel(target=0, drop=True)
    sums = np.full((len(CATEGORIES), *rest.shape), np.nan, values.dtype)
    for place, category in enumerate(CATEGORIES):
        here = np.flatnonzero(of == category)
        if len(here):
            chosen: Any = (*(slice(None),) * axis, here)
            sums[place] = values[chosen].sum(axis)
    # Sums are put together here: eight labelled arrays for every trace would take ten times as long.
    labels = {**rest.coords, "category": list(CATEGORIES)}
    return xr.DataArray(sums, labels, ("category", *rest.dims), flow.name, rest.attrs)


def stated(examples: Sequence[xr.Dataset]) -> str:
    """How many of the traces name a gold region: a NaN says why."""
    there = sum(bool(one.attrs["gold"]) for one in examples)
    return f"{there} of {len(examples)} traces name a gold region; the others are NaN there"


def written(trace: Trace) -> Bool[np.ndarray, " e"]:
    """Which reveals belong to the answer's text: all up to its end token, and that one.

    A causal model stops there; a diffusion model fills what is left with the same token, and those
    rows would outvote the rest. So of the run of one token that ends the answer only the first
    counts, for both kinds of model alike.
    """
    final = trace.canvas.values[-1]
    final = final[final >= 0][int(trace.info["prompt_length"]) :]
    position = trace.rows["event_position"].values - int(trace.info["prompt_length"])
    if not len(final):
        return np.ones(len(position), bool)
    differs = np.flatnonzero(final != final[-1])
    return position <= (differs[-1] + 1 if len(differs) else 0)
