"""Compute and pack the parts of a scene's attention: anchors, single heads, rows, groups of queries.

The same functions pack finished traces and decodings that are still running. A finished trace is packed a few
steps at a time. A running decoding is packed from the column sums of its latest step. The module `pack`
decides which parts fit into a page.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ..stats.anchors import Rule
from ..trace import Trace
from .codec import pack_index, pack_log, text_size

TOP_ANCHORS, TOP_HEAD_ANCHORS = 5, 3
_BLOCK = 8 << 20  # bytes of column sums

Scene = dict[str, Any]


def spread(n: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spaced indices from 0 to n − 1, including both ends."""
    return np.unique(np.round(np.linspace(0, n - 1, min(n, most))).astype(int))


@dataclass(frozen=True)
class Columns:
    """Column sums of attention at some steps, with the counts by which sums are divided to get means.

    Keys that do not exist yet are NaN.

    Attributes:
        sums: Attention that each key receives, summed over the queries of each group.
        rows: Number of queries in each group.
        visible: Number of queries that see each key.
    """

    sums: Float[np.ndarray, "step group layer head key"]
    rows: Shaped[np.ndarray, "step group"]
    visible: Float[np.ndarray, "step key"]

    @classmethod
    def of(cls, trace: Trace) -> "Columns":
        sums = trace.data["column_sum"].transpose("step", "group", "layer", "head", "key")
        return cls(sums.values, trace.data["rows_counted"].values, trace.data["visible"].values)

    @cached_property
    def _total(self) -> Float[np.ndarray, "step layer head key"]:
        return self.sums.sum(1, dtype=np.result_type(self.sums.dtype, np.float32))

    @cached_property
    def mass(self) -> Float[np.ndarray, "step layer head key"]:
        return self._total / _counted(self.rows.sum(1))[:, None, None, None]

    @cached_property
    def received(self) -> Float[np.ndarray, "step layer head key"]:
        return self._total / self.visible[:, None, None].astype(np.float32)

    @property
    def mass_by_group(self) -> Float[np.ndarray, "step group layer key"]:
        """Share of the attention of each group's queries that each key receives, mean over heads."""
        means = self.sums.mean(3, dtype=self._total.dtype)
        return means / _counted(self.rows)[:, :, None, None]

    @property
    def reach(self) -> Float[np.ndarray, "step key"]:
        """Share of queries that see each key; the attention per query that sees the key is mass / reach."""
        return self.visible / _counted(self.rows.sum(1, keepdims=True))


def _counted(rows: np.ndarray) -> np.ndarray:
    return np.where(rows > 0, rows, np.nan).astype(np.float32)


def sizes_of(trace: Trace) -> tuple[int, int, int, int]:
    """Return a trace's numbers of kept steps, layers, heads and positions."""
    if "column_sum" not in trace.data:
        _ = trace.mass  # says what to keep
    sizes = trace.data["column_sum"].sizes
    return sizes["step"], sizes["layer"], sizes["head"], sizes["key"]


def blocks(trace: Trace, steps: np.ndarray) -> Iterator[Columns]:
    """Yield the column sums of the kept steps with these indices, a few steps at a time to save memory."""
    column, n = trace.data["column_sum"], sizes_of(trace)[0]
    # As a saved trace is cut, so that each of its files is read once, by itself.
    stored = column.encoding.get("chunks") or (max(1, _BLOCK * n // max(column.nbytes, 1)),)
    block_length = int(stored[0])
    data = trace.data[["column_sum", "rows_counted", "visible"]]
    for start in range(0, len(steps), block_length):
        yield Columns.of(Trace(data.isel(step=steps[start : start + block_length]).load()))


def attention(parts: Iterable[Columns], rule: Rule) -> dict[str, np.ndarray]:
    """Return a scene's arrays by layer and step (share, anchors, …), and the peak key of each head.

    `parts` are consecutive steps; the arrays cover the steps of all parts. The attention of single heads is
    not returned.
    """
    parts_found = [_attention(part, rule) for part in parts]
    return {
        name: np.concatenate([arrays[name] for arrays in parts_found]) for name in parts_found[0]
    }


def _attention(part: Columns, rule: Rule) -> dict[str, np.ndarray]:
    share, by_layer = part.mass.mean(2), part.received.mean(2)  # (step, layer, key)
    with_mean = np.concatenate([by_layer, by_layer.mean(1, keepdims=True)], 1)
    passed = rule.passes(with_mean)
    shares = np.nan_to_num(part.mass, nan=-1.0)
    values = {
        "reach": part.reach,
        "share": share,
        "anchors": strongest(with_mean, passed, TOP_ANCHORS),
        "anchor_count": passed.sum(-1),
        "peak": shares.max(-1),
        "peak_key": shares.argmax(-1),
        "there": np.isfinite(share[:, 0]).sum(-1),
    }
    return values | ({"from": part.mass_by_group} if part.rows.shape[1] > 1 else {})


def pack_attention(arrays: dict[str, np.ndarray], null: np.ndarray) -> Scene:
    return {
        "range": range_of(arrays["share"], arrays["peak"]),
        "null": pack_log(null),
        **{name: pack_log(arrays[name]) for name in ("reach", "share", "peak")},
        **{name: pack_index(arrays[name]) for name in ("anchors", "anchor_count", "peak_key")},
    }


def pack_groups(arrays: dict[str, np.ndarray], names: Iterable[object]) -> Scene | None:
    """Pack the attention that each key receives from each group of queries; None if there is one group."""
    if "from" not in arrays:
        return None
    return {"names": [str(name) for name in names], "share": pack_log(arrays["from"], "uint8")}


def range_of(share: np.ndarray, heads: np.ndarray) -> dict[str, float]:
    """Return the largest share, share of a head, and change between steps, for scales of colour."""
    change = np.abs(np.diff(share, axis=0))
    values = {"share": share, "head": np.maximum(heads, 0), "change": change}
    return {name: float(np.nanmax(array, initial=0)) for name, array in values.items()}


def name_of(rule: Rule) -> str:
    """Return the name of a rule with its settings, such as "ZScore, k = 3"."""
    shown = {f.name: getattr(rule, f.name) for f in fields(rule)}
    per_head = ", per head" if shown.pop("per_head", False) else ""
    return type(rule).__name__ + "".join(f", {k} = {v:g}" for k, v in shown.items()) + per_head


def strongest(
    received: Float[np.ndarray, "*rest key"], passed: Bool[np.ndarray, "*rest key"], most: int
) -> Int[np.ndarray, "*rest top"]:
    """Return the indices of the `most` anchors that receive most, strongest first; −1 if there are fewer."""
    score = np.where(passed, received, -1.0)
    order = np.argsort(-score, axis=-1, kind="stable")[..., :most]
    return np.where(np.take_along_axis(score, order, -1) >= 0, order, -1)


def gold_look(trace: Trace, steps: np.ndarray) -> np.ndarray | None:
    """Return the share of attention on the gold passage, (step, layer, head); None without such a passage.

    The share is the mean over the rows that predict the tokens revealed at a step. It is NaN if a step
    reveals no token.
    """
    gold = str(trace.info["gold"])
    if "row_flow" not in trace.data or gold not in trace.data["target"].values:
        return None
    flow = trace.rows["row_flow"].sel(target=gold).values  # (event, layer, head)
    event_steps = trace.data["event_step"].values
    shares = np.full((len(steps), *flow.shape[1:]), np.nan)
    for i, step in enumerate(trace.data["step"].values[steps]):
        if (event_steps == step).any():
            shares[i] = flow[event_steps == step].mean(0)
    return shares


def rows(trace: Trace) -> Scene | None:
    if "row_key" not in trace.data:
        return None
    events = np.stack(
        [trace.data["event_step"].values, trace.data["event_position"].values], axis=1
    )
    return {
        "event": pack_index(events),
        "key": pack_index(trace.rows["row_key"].values),
        "weight": pack_log(trace.rows["row_weight"].values, "uint8"),
    }


def heads_that_fit(shape: tuple[int, ...], left: int) -> tuple[str, np.ndarray]:
    """Choose the dtype and the steps for storing the attention of single heads in `left` characters.

    Returns the dtype and the indices of the steps. The dtype is uint16 if all steps fit with uint16, else
    uint8. If not all steps fit with uint8, evenly spaced steps are selected. `shape` contains the numbers
    of steps, layers, heads and positions.
    """
    steps, layers, heads, keys = shape
    extra = text_size(layers * heads * TOP_HEAD_ANCHORS, "uint16")
    per_step = {d: text_size(layers * heads * keys, d) + extra for d in ("uint16", "uint8")}
    dtype = "uint16" if steps * per_step["uint16"] <= left else "uint8"
    fits = left // per_step[dtype]
    return dtype, spread(steps, fits) if fits > 0 else np.zeros(0, int)


def pack_heads(parts: Iterable[Columns], rule: Rule, dtype: str, kept: np.ndarray) -> Scene | None:
    """Pack the attention and anchors of single heads at the steps in `kept`; None if there are none."""
    share, anchors = [], []
    for part in parts:
        share.append(part.mass)
        passed = rule.passes(part.received)
        anchors.append(strongest(part.received, passed, TOP_HEAD_ANCHORS))
    if not share:
        return None
    return {
        "kept": [int(i) for i in kept],
        "share": pack_log(np.concatenate(share), dtype),
        "anchors": pack_index(np.concatenate(anchors)),
    }
