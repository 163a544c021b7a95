"""Map prompt regions to categories shared by all prompts, so that examples can be averaged.

Prompts differ in the number of their passages, and in which of the passages is gold. A category that a prompt
lacks is NaN.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from jaxtyping import Bool

from ..errors import UsageError
from ..plots import Axes, band, legend_above
from ..trace import Trace
from .nulls import MASKED, REVEALED, names, tokens
from .result import Result

GOLD, OTHERS, UNKNOWN = "gold", "other passages", "passages"
# "passages": all passages of a prompt without gold. "rest": parts with any other name.
CATEGORIES = (GOLD, OTHERS, UNKNOWN, "question", "instruction", "template", "answer", "rest")

SERIES = (0, 1, 2, 4, 5, 6, 8, 9)  # line styles in figures; dotted is for nulls


def gold_of(trace: Trace) -> str | None:
    """Return the name of the gold region; None if none is named or the named region has no tokens."""
    gold = str(trace.info.get("gold", ""))
    return gold if gold and gold in names(trace) else None


def category_of(name: str, gold: str | None) -> str:
    """Return the category of a region, given the name of the gold region."""
    if name == gold:
        return GOLD
    if name.startswith("passage "):
        return UNKNOWN if gold is None else OTHERS
    if name in (MASKED, REVEALED):
        return "answer"
    return name if name in ("question", "instruction", "template") else "rest"


def from_sources(array: xr.DataArray, trace: Trace, sources: Sequence[str]) -> xr.DataArray:
    """Average over the rows of several source regions, then over the steps that have such rows."""
    region_names = names(trace)
    unknown = [s for s in sources if s not in region_names]
    if unknown or not sources:
        raise UsageError(
            f"no region {(*unknown, '')[0]!r}", f"This trace has: {', '.join(region_names)}."
        )
    chosen = [region_names.index(s) for s in sources]
    weight = xr.DataArray(tokens(trace)[:, chosen], dims=("step", "source"))
    rows = array.isel(source=chosen).weighted(weight).mean("source")
    return rows.mean("step")


def by_category(flow: xr.DataArray, trace: Trace) -> xr.DataArray:
    """Sum flow over the target regions of each category; `target` becomes `category`, in a fixed order."""
    gold = gold_of(trace)
    kinds = np.array([category_of(str(target), gold) for target in flow["target"].values])
    inside = kinds[:, None] == np.array(CATEGORIES)  # (target, category)
    weight = np.where(inside.any(0), inside.astype(flow.dtype), np.nan)
    labelled = xr.DataArray(weight, {"category": list(CATEGORIES)}, ("target", "category"))
    return xr.dot(flow, labelled, dim="target").transpose("category", ...)


def draw_categories(axis: Axes, result: Result, name: str, label: str) -> None:
    """Draw the share of each category over layers, with its interval and null if they exist."""
    shown = result[name].dropna("category", how="all")["category"].values
    for series, category in zip(SERIES, shown, strict=False):
        part = replace(result, data=result.data.sel(category=category), control=None)
        band(axis, part, name, "layer", series=series, label=str(category))
    legend_above(axis, 7)
    axis.set(ylabel=label, ylim=(0, 1))


def written(trace: Trace) -> Bool[np.ndarray, " e"]:
    """Return which reveals belong to the answer's text, up to and including its end token.

    If the last token is repeated up to the end of the answer, only the first of these tokens counts.
    """
    final = trace.canvas.values[-1]
    final = final[final >= 0][int(trace.info["prompt_length"]) :]
    position = trace.rows["event_position"].values - int(trace.info["prompt_length"])
    if not len(final):
        return np.ones(len(position), bool)
    differs = np.flatnonzero(final != final[-1])
    return position <= (differs[-1] + 1 if len(differs) else 0)
