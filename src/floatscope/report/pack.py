"""A trace becomes a scene: everything the viewer shows of one example and one model, as JSON.

A scene has a byte budget. What does not fit is left out in a fixed order and said so in `left_out`:
first the precision of single heads, then some of their steps, then the rows, then steps altogether.
It measures nothing that the trace or an anchor rule does not already say.
"""

from typing import Any

import numpy as np
import xarray as xr

from ..errors import UsageError
from ..measures.anchors import Rule, ZScore
from ..trace import Trace
from .canvas import example_of, title_of, words
from .codec import Packed, pack_index, pack_log, text_size

FORMAT = 1
BUDGET = 1_000_000  # characters of one scene
TOP_ANCHORS, TOP_HEAD_ANCHORS = 5, 3

Scene = dict[str, Any]


def scene_of(
    trace: Trace,
    *,
    example: str | None = None,
    title: str | None = None,
    rule: Rule | None = None,
    budget: int = BUDGET,
) -> Scene:
    """What the viewer shows of one trace, in about `budget` characters of JSON at most.

    Scenes with the same `example` are shown side by side; by default that is the same prompt.
    """
    rule = rule or ZScore()
    mass = trace.mass.transpose("step", "layer", "head", "key")
    steps, said = _fitting_steps(trace, mass, budget)
    part = mass.isel(step=steps)
    share = part.mean("head").values
    null = trace.null.isel(step=steps).values
    size = part.shape[-1]
    scene: Scene = {
        "format": FORMAT,
        "example": example or example_of(trace),
        "title": title or title_of(trace),
        "model": {k: str(trace.info.get(k, "")) for k in _MODEL},
        "answer": trace.text,
        "prompt_length": int(trace.info["prompt_length"]),
        "gold": str(trace.info["gold"]),
        "ticks": trace.n_steps,
        "steps": [int(s) for s in part["step"].values],
        "layers": [int(i) for i in part["layer"].values],
        "heads": [int(i) for i in part["head"].values],
        "range": {
            "share": _most(share),
            "head": _most(part.values),
            "change": _most(np.abs(np.diff(share, axis=0))),
        },
        **words(trace, steps),
        "null": pack_log(null),
        "reach": pack_log(_reach(trace, steps)),
        "share": pack_log(share),
        **_anchors(trace, rule, steps),
        **_heads_summary(trace, part, steps),
        "left_out": said,
    }
    left = budget - _weight(scene)
    rows = _rows(trace)
    left = _put(scene, "rows", rows, left, "the rows of revealed positions")
    left = _put(scene, "from", _groups(trace, steps), left, "who looks, by group of queries")
    scene["single_heads"] = single_heads(part, rule, trace, steps, left, said)
    if size > 1 and rule.limit(size):
        said.append(str(rule.limit(size)))
    return scene


_MODEL = ("model", "family", "direction", "fingerprint", "sampler", "dtype", "ended")


def _fitting_steps(trace: Trace, mass: xr.DataArray, budget: int) -> tuple[np.ndarray, list[str]]:
    """All kept steps, or as many evenly spaced ones as fit without single heads."""
    n, layers, heads, size = mass.shape
    fixed = 4000 + 12 * size
    each = text_size(size * (2 * layers + 5), "uint16") // 2 + text_size(size * 5, "uint16")
    each += text_size(layers * (TOP_ANCHORS + 1) + 3 * layers * heads, "uint16")
    fit = (budget - fixed) // each
    if fit < min(n, 2):
        raise UsageError(
            f"a scene of {layers} layers × {size} positions does not fit into {budget} bytes",
            f"Give it a budget of at least {fixed + 2 * each}.",
        )
    chosen = spread(n, int(fit))
    said = [] if len(chosen) == n else [f"sampled {len(chosen)} of {n} steps"]
    if n < trace.n_steps:
        said.append(f"the trace kept {n} of {trace.n_steps} steps")
    return chosen, said


def spread(n: int, most: int) -> np.ndarray:
    """At most `most` of n indices, evenly spaced, with the first and the last."""
    return np.unique(np.round(np.linspace(0, n - 1, min(n, most))).astype(int))


def _reach(trace: Trace, steps: np.ndarray) -> np.ndarray:
    """The share of the queries that see each key: received = share / reach."""
    rows = trace.data["rows_counted"].values[steps].sum(-1, keepdims=True)
    return np.asarray(trace.data["visible"].values[steps] / rows)


def _anchors(trace: Trace, rule: Rule, steps: np.ndarray) -> Scene:
    """The strongest anchors of every layer, and last those of the mean over layers."""
    received = trace.received.isel(step=steps).mean("head").transpose("step", "layer", "key")
    whole = received.mean("layer").expand_dims(layer=[-1], axis=1)
    both = xr.concat([received, whole], "layer")
    passed = passing(rule, both)
    return {
        "rule": repr(rule),
        "anchors": pack_index(_strongest(both.values, passed, TOP_ANCHORS)),
        "anchor_count": pack_index(passed.sum(-1)),
    }


def passing(rule: Rule, received: xr.DataArray) -> np.ndarray:
    """The rule, without its warnings: a scene says them in `left_out`."""
    there = received.notnull()
    return np.asarray((rule.passes(received, there.sum("key")) & there).values, bool)


def _strongest(received: np.ndarray, passed: np.ndarray, most: int) -> np.ndarray:
    """Keys of the anchors that receive most, best first; −1 where there are fewer."""
    score = np.where(passed, received, -1.0)
    order = np.argsort(-score, axis=-1, kind="stable")[..., :most]
    return np.where(np.take_along_axis(score, order, -1) >= 0, order, -1)


def _heads_summary(trace: Trace, mass: xr.DataArray, steps: np.ndarray) -> Scene:
    """Of every head: its strongest key, and what the predicting rows gave the gold passage."""
    values = np.where(np.isnan(mass.values), -1, mass.values)
    found: Scene = {
        "peak": pack_log(values.max(-1)),
        "peak_key": pack_index(values.argmax(-1)),
    }
    gold = str(trace.info["gold"])
    if "row_flow" not in trace.data or gold not in trace.data["target"].values:
        return found
    flow = trace.rows["row_flow"].sel(target=gold).values  # (event, layer, head)
    at = trace.data["event_step"].values
    looks = np.full(values.shape[:-1], np.nan)
    for i, step in enumerate(mass["step"].values):
        if (at == step).any():
            looks[i] = flow[at == step].mean(0)
    found["gold_look"] = pack_log(looks, "uint8")
    return found


def _rows(trace: Trace) -> Scene | None:
    if "row_key" not in trace.data:
        return None
    at = np.stack([trace.data["event_step"].values, trace.data["event_position"].values], axis=1)
    return {
        "event": pack_index(at),
        "key": pack_index(trace.rows["row_key"].values),
        "weight": pack_log(trace.rows["row_weight"].values, "uint8"),
    }


def _groups(trace: Trace, steps: np.ndarray) -> Scene | None:
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
    """Every head by itself: in two bytes a value, in one, or in one for some of the steps."""
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


def _put(scene: Scene, name: str, value: Scene | None, left: int, what: str) -> int:
    """Add a part if it fits; say so if it does not. What remains of the budget."""
    if value is None:
        return left
    if _weight(value) > left:
        scene["left_out"].append(f"{what}: {_weight(value)} bytes")
        return left
    scene[name] = value
    return left - _weight(value)


def _weight(part: Any) -> int:
    """About the characters of a part as JSON, without writing it."""
    if isinstance(part, dict):
        return sum(len(k) + 6 + _weight(v) for k, v in part.items())
    if isinstance(part, list):
        return sum(2 + _weight(v) for v in part)
    return len(part) * (1 if str(part).isascii() else 6) if isinstance(part, str) else 12


def _most(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.max()) if there.size else 0.0


__all__ = ["BUDGET", "FORMAT", "Packed", "Scene", "scene_of"]
