"""The attention of a scene, part by part: anchors, heads, rows, groups of queries. Each is packed here.

Nothing is weighed: what fits into a page is decided in `pack`.
"""

from dataclasses import fields
from typing import Any

import numpy as np
import xarray as xr

from ..stats.anchors import Rule
from ..trace import Trace
from .codec import pack_index, pack_log, text_size

TOP_ANCHORS, TOP_HEAD_ANCHORS = 5, 3

Scene = dict[str, Any]


def spread(n: int, most: int) -> np.ndarray:
    """At most `most` of n indices, evenly spaced, with the first and the last."""
    return np.unique(np.round(np.linspace(0, n - 1, min(n, most))).astype(int))


def reach(trace: Trace, steps: np.ndarray) -> np.ndarray:
    """The share of the queries that see each key: received = share / reach."""
    rows = trace.data["rows_counted"].values[steps].sum(-1, keepdims=True)
    return np.asarray(trace.data["visible"].values[steps] / rows)


def anchors(trace: Trace, rule: Rule, steps: np.ndarray) -> Scene:
    """The strongest anchors of every layer, and last those of the mean over layers."""
    received = trace.received.isel(step=steps).mean("head").transpose("step", "layer", "key")
    whole = received.mean("layer").expand_dims(layer=[-1], axis=1)
    both = xr.concat([received, whole], "layer")
    passed = passing(rule, both)
    return {
        "rule": name_of(rule),
        "anchors": pack_index(_strongest(both.values, passed, TOP_ANCHORS)),
        "anchor_count": pack_index(passed.sum(-1)),
    }


def name_of(rule: Rule) -> str:
    """Such as "ZScore, k = 3"."""
    shown = {f.name: getattr(rule, f.name) for f in fields(rule)}
    per_head = ", per head" if shown.pop("per_head", False) else ""
    return type(rule).__name__ + "".join(f", {k} = {v:g}" for k, v in shown.items()) + per_head


def passing(rule: Rule, received: xr.DataArray) -> np.ndarray:
    """The rule, without its warnings: a scene says them in `left_out`."""
    return np.asarray(rule.of(received, warn=False).values, bool)


def _strongest(received: np.ndarray, passed: np.ndarray, most: int) -> np.ndarray:
    """Keys of the anchors that receive most, best first; −1 where there are fewer."""
    score = np.where(passed, received, -1.0)
    order = np.argsort(-score, axis=-1, kind="stable")[..., :most]
    return np.where(np.take_along_axis(score, order, -1) >= 0, order, -1)


def heads_summary(trace: Trace, mass: xr.DataArray, steps: np.ndarray) -> Scene:
    """Of every head: its strongest key, and what the predicting rows gave the gold passage."""
    values = np.where(np.isnan(mass.values), -1, mass.values)
    summary: Scene = {
        "peak": pack_log(values.max(-1)),
        "peak_key": pack_index(values.argmax(-1)),
    }
    gold = str(trace.info["gold"])
    if "row_flow" not in trace.data or gold not in trace.data["target"].values:
        return summary
    flow = trace.rows["row_flow"].sel(target=gold).values  # (event, layer, head)
    at = trace.data["event_step"].values
    looks = np.full(values.shape[:-1], np.nan)
    for i, step in enumerate(mass["step"].values):
        if (at == step).any():
            looks[i] = flow[at == step].mean(0)
    summary["gold_look"] = pack_log(looks, "uint8")
    return summary


def rows(trace: Trace) -> Scene | None:
    if "row_key" not in trace.data:
        return None
    at = np.stack([trace.data["event_step"].values, trace.data["event_position"].values], axis=1)
    return {
        "event": pack_index(at),
        "key": pack_index(trace.rows["row_key"].values),
        "weight": pack_log(trace.rows["row_weight"].values, "uint8"),
    }


def groups(trace: Trace, steps: np.ndarray) -> Scene | None:
    """Mean attention a query of each group gives each key, head mean."""
    names = [str(g) for g in trace.data["group"].values]
    if len(names) < 2:
        return None
    part = Trace(trace.data.isel(step=steps))
    parts = [part.mass_from(g).mean("head").transpose("step", "layer", "key") for g in names]
    return {"names": names, "share": pack_log(np.stack([p.values for p in parts], 1), "uint8")}


def single_heads(
    mass: xr.DataArray,
    rule: Rule,
    trace: Trace,
    steps: np.ndarray,
    left: int,
    said: list[str],
) -> Scene | None:
    """Every head by itself: in two bytes per value, in one, or in one for some of the steps."""
    n, layers, heads, size = mass.shape
    extra = text_size(layers * heads * TOP_HEAD_ANCHORS, "uint16")
    each = {d: text_size(layers * heads * size, d) + extra for d in ("uint16", "uint8")}
    dtype = "uint16" if n * each["uint16"] <= left else "uint8"
    kept = spread(n, left // each[dtype]) if left >= each[dtype] else np.zeros(0, int)
    if len(kept) < n:
        said.append(f"single heads for {len(kept)} of {n} steps")
    if not len(kept):
        return None
    received = trace.received.isel(step=steps[kept]).transpose("step", "layer", "head", "key")
    passed = passing(rule, received)
    return {
        "kept": [int(i) for i in kept],
        "share": pack_log(mass.values[kept], dtype),
        "anchors": pack_index(_strongest(received.values, passed, TOP_HEAD_ANCHORS)),
    }
