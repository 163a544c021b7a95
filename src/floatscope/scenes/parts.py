"""The attention of a scene, part by part: anchors, heads, rows, groups of queries, each packed.

`pack` decides what fits into a page.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import xarray as xr

from ..stats.anchors import Rule
from ..trace import Trace
from .codec import pack_index, pack_log, text_size

TOP_ANCHORS, TOP_HEAD_ANCHORS = 5, 3
_BLOCK = 8 << 20  # bytes of column sums

Scene = dict[str, Any]


def spread(n: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spaced indices below n, including the first and the last."""
    return np.unique(np.round(np.linspace(0, n - 1, min(n, most))).astype(int))


def reach(trace: Trace, steps: np.ndarray) -> np.ndarray:
    """Return the share of queries that see each key, (step, key); received attention is share / reach."""
    rows = trace.data["rows_counted"].values[steps].sum(-1, keepdims=True)
    return np.asarray(trace.data["visible"].values[steps] / rows)


def sizes_of(trace: Trace) -> tuple[int, int, int, int]:
    """Return the numbers of kept steps, layers, heads and positions."""
    if "column_sum" not in trace.data:
        _ = trace.mass  # says what to keep
    sizes = trace.data["column_sum"].sizes
    return sizes["step"], sizes["layer"], sizes["head"], sizes["key"]


def blocks(trace: Trace, steps: np.ndarray) -> Iterator[Trace]:
    """Yield the trace at some of the steps, a few at a time, as much as a viewer holds at once."""
    column, n = trace.data["column_sum"], sizes_of(trace)[0]
    # As a saved trace is cut, so that each of its files is read once, by itself.
    stored = column.encoding.get("chunks") or (max(1, _BLOCK * n // max(column.nbytes, 1)),)
    most = int(stored[0])
    names = [n for n in ("column_sum", "column_mean", "rows_counted", "visible") if n in trace.data]
    data = trace.data[names]
    for start in range(0, len(steps), most):
        yield Trace(data.isel(step=steps[start : start + most]).load())


def attention(trace: Trace, rule: Rule, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Read what a scene shows of every layer and head in one pass, without keeping single heads."""
    blocks_of: dict[str, list[np.ndarray]] = {}
    groups = [str(g) for g in trace.data["group"].values]
    for block in blocks(trace, steps):
        share = block.mean_mass.transpose("step", "layer", "key")
        received = block.mean_received.transpose("step", "layer", "key")
        whole = received.mean("layer").expand_dims(layer=[-1], axis=1)
        both = xr.concat([received, whole], "layer")
        passed = passing(rule, both)
        peak, peak_key = _peaks(block)
        values = {
            "share": share.values,
            "peak": peak,
            "peak_key": peak_key,
            "there": np.isfinite(share.values[:, 0]).sum(-1),
            "anchors": strongest(both.values, passed, TOP_ANCHORS),
            "anchor_count": passed.sum(-1),
        }
        if len(groups) > 1:
            shares = [block.mean_mass_from(g).transpose("step", "layer", "key") for g in groups]
            values["from"] = np.stack([s.values for s in shares], 1)
        for name, array in values.items():
            blocks_of.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in blocks_of.items()}


def _peaks(block: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return each head's largest share and its key, (step, layer, head); −1 if there is no key."""
    mass = block.mass.transpose("step", "layer", "head", "key").values
    np.nan_to_num(mass, copy=False, nan=-1.0)
    key = mass.argmax(-1)
    return np.take_along_axis(mass, key[..., None], -1)[..., 0], key


def name_of(rule: Rule) -> str:
    """Name a rule with its setting, such as "ZScore, k = 3"."""
    shown = {f.name: getattr(rule, f.name) for f in fields(rule)}
    per_head = ", per head" if shown.pop("per_head", False) else ""
    return type(rule).__name__ + "".join(f", {k} = {v:g}" for k, v in shown.items()) + per_head


def passing(rule: Rule, received: xr.DataArray) -> np.ndarray:
    """Apply the rule without its warnings, which a scene lists in `left_out`."""
    return np.asarray(rule.of(received, warn=False).values, bool)


def strongest(received: np.ndarray, passed: np.ndarray, most: int) -> np.ndarray:
    """Return the anchors that receive most, strongest first; −1 where there are fewer."""
    score = np.where(passed, received, -1.0)
    order = np.argsort(-score, axis=-1, kind="stable")[..., :most]
    return np.where(np.take_along_axis(score, order, -1) >= 0, order, -1)


def gold_look(trace: Trace, steps: np.ndarray) -> np.ndarray | None:
    """Return the share of the predicting rows' attention on the gold passage, by head; None without one."""
    gold = str(trace.info["gold"])
    if "row_flow" not in trace.data or gold not in trace.data["target"].values:
        return None
    flow = trace.rows["row_flow"].sel(target=gold).values  # (event, layer, head)
    at = trace.data["event_step"].values
    looks = np.full((len(steps), *flow.shape[1:]), np.nan)
    for i, step in enumerate(trace.data["step"].values[steps]):
        if (at == step).any():
            looks[i] = flow[at == step].mean(0)
    return looks


def rows(trace: Trace) -> Scene | None:
    if "row_key" not in trace.data:
        return None
    at = np.stack([trace.data["event_step"].values, trace.data["event_position"].values], axis=1)
    return {
        "event": pack_index(at),
        "key": pack_index(trace.rows["row_key"].values),
        "weight": pack_log(trace.rows["row_weight"].values, "uint8"),
    }


def single_heads(
    trace: Trace,
    rule: Rule,
    steps: np.ndarray,
    left: int,
    said: list[str],
    *,
    fetched: bool = False,
) -> Scene | None:
    """Pack every head: in two bytes per value, in one, or in one byte for some of the steps.

    If the others can be `fetched`, all steps are packed or none.
    """
    n, (_, layers, heads, size) = len(steps), sizes_of(trace)
    extra = text_size(layers * heads * TOP_HEAD_ANCHORS, "uint16")
    each = {d: text_size(layers * heads * size, d) + extra for d in ("uint16", "uint8")}
    dtype = "uint16" if n * each["uint16"] <= left else "uint8"
    kept = spread(n, left // each[dtype]) if left >= each[dtype] else np.zeros(0, int)
    if len(kept) < n and fetched:
        return None
    if len(kept) < n:
        said.append(f"single heads for {len(kept)} of {n} steps")
    if not len(kept):
        return None
    share, anchors = [], []
    for part in blocks(trace, steps[kept]):
        share.append(part.mass.transpose("step", "layer", "head", "key").values)
        received = part.received.transpose("step", "layer", "head", "key")
        anchors.append(strongest(received.values, passing(rule, received), TOP_HEAD_ANCHORS))
    return {
        "kept": [int(i) for i in kept],
        "share": pack_log(np.concatenate(share), dtype),
        "anchors": pack_index(np.concatenate(anchors)),
    }
