"""Anchors against the rest: which keys they are at a step, layer and head, and means on both sides.

Shared by the measures that set anchors beside other keys. It holds no rule of its own (anchors.py
does) and no null: what to compare, and with what, is for the measure to say.
"""

from collections.abc import Iterable

import xarray as xr

from ..stats.anchors import Rule
from ..trace import Trace

# Coordinates of keys that were summed or selected away.
LOOSE = ("token", "final_token", "region", "token_class", "masked", "key")


def anchors_of(trace: Trace, rule: Rule, *, fallback: bool) -> tuple[xr.DataArray, xr.DataArray]:
    """Anchors (step, layer[, head], key), and where the rule itself found one (step, layer[, head]).

    With `fallback` the key that receives most stands in where the rule finds none.
    """
    anchor = rule(trace)
    has_anchor = anchor.any("key")
    if fallback:
        received = trace.received if rule.per_head else trace.mean_received
        top = received.fillna(-1).argmax("key")
        position = xr.DataArray(range(anchor.sizes["key"]), dims="key")
        anchor = anchor | (~has_anchor & (position == top) & received.notnull())
    return anchor, has_anchor.drop_vars(LOOSE, errors="ignore")


def uniform_received(trace: Trace) -> xr.DataArray:
    """Attention received by each key if every query spread its own evenly: (step[, layer], key)."""
    return trace.null * trace.data["rows_counted"].sum("group") / trace.data["visible"]


def sides(values: xr.DataArray, anchor: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """`values` at anchors and at all other keys that are there; NaN elsewhere."""
    return values.where(anchor), values.where(~anchor)


def by_layer(values: xr.DataArray, *, keep: Iterable[str] = ("layer",)) -> xr.DataArray:
    """Mean over everything else (steps, heads) where the value applies."""
    rest = [d for d in values.dims if d not in set(keep)]
    return values.mean(rest).drop_vars(LOOSE, errors="ignore")
