"""Turn a trace into a scene: everything the viewer shows of one example and one model, as JSON.

A scene has a byte budget. What does not fit is left out in a fixed order and listed in `left_out`: first the
precision of single heads, then some of their steps, then the rows, then steps. It measures nothing that the
trace or an anchor rule does not say already.
"""

from typing import Any

import numpy as np

from ..errors import UsageError
from ..stats.anchors import Rule, ZScore
from ..trace import Trace, readable
from ..trace.windows import require_global
from .codec import pack_index, pack_log, text_size
from .parts import (
    TOP_ANCHORS,
    Scene,
    attention,
    gold_look,
    name_of,
    reach,
    rows,
    single_heads,
    sizes_of,
    spread,
)
from .words import example_of, title_of, words

FORMAT = 1
BUDGET = 1_200_000  # characters of one scene in a page
SERVED = 32_000_000  # … of one that is stored to be served by itself: 24 MB before compression
NEEDS = ("mass", "groups", "rows")  # statistics that a scene shows, where a trace has them


def scene_of(
    trace: Trace,
    *,
    example: str | None = None,
    title: str | None = None,
    rule: Rule | None = None,
    budget: int = BUDGET,
    fetched: bool = False,
) -> Scene:
    """Pack what the viewer shows of one trace, in about `budget` characters of JSON at most.

    Scenes with the same `example` are shown side by side; by default these are the scenes of the same
    prompt. With `fetched`, single heads that do not fit can be requested later.
    """
    require_global(trace.data, "the viewer")
    rule = rule or ZScore()
    steps, said = _fitting_steps(trace, budget)
    seen = attention(trace, rule, steps)
    share, looks = seen["share"], gold_look(trace, steps)
    null = trace.null.isel(step=steps).values
    scene: Scene = {
        "format": FORMAT,
        "example": example or example_of(trace),
        "title": title or title_of(trace),
        "model": {k: str(trace.info.get(k, "")) for k in MODEL},
        "under": list(trace.interventions),
        "answer": trace.text,
        "prompt_length": int(trace.info["prompt_length"]),
        "gold": str(trace.info["gold"]),
        "ticks": trace.n_steps,
        "steps": [int(s) for s in trace.data["step"].values[steps]],
        "layers": [int(i) for i in trace.data["layer"].values],
        "heads": [int(i) for i in trace.data["head"].values],
        "range": {
            "share": _most(share),
            "head": _most(np.maximum(seen["peak"], 0)),
            "change": _most(np.abs(np.diff(share, axis=0))),
        },
        **words(trace, steps),
        "null": pack_log(null),
        "reach": pack_log(reach(trace, steps)),
        "share": pack_log(share),
        "rule": name_of(rule),
        "anchors": pack_index(seen["anchors"]),
        "anchor_count": pack_index(seen["anchor_count"]),
        "peak": pack_log(seen["peak"]),
        "peak_key": pack_index(seen["peak_key"]),
        **({} if looks is None else {"gold_look": pack_log(looks, "uint8")}),
        "left_out": said,
    }
    left = budget - _weight(scene)
    left = _put(scene, "rows", rows(trace), left, "the rows of revealed positions")
    left = _put(scene, "from", _groups(trace, seen), left, "who looks, by group of queries")
    scene["single_heads"] = single_heads(trace, rule, steps, left, said, fetched=fetched)
    limit = rule.limit(int(seen["there"].min()))
    if limit:
        said.append(limit)
    return scene


MODEL = ("model", "family", "direction", "fingerprint", "sampler", "dtype", "ended")


def _groups(trace: Trace, seen: dict[str, np.ndarray]) -> Scene | None:
    """Pack the mean attention that a query of each group gives each key, mean over heads."""
    if "from" not in seen:
        return None
    names = [str(g) for g in trace.data["group"].values]
    return {"names": names, "share": pack_log(seen["from"], "uint8")}


def _fitting_steps(trace: Trace, budget: int) -> tuple[np.ndarray, list[str]]:
    """Return all kept steps, or as many evenly spaced ones as fit without single heads."""
    n, layers, heads, size = sizes_of(trace)
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


def _put(scene: Scene, name: str, value: Scene | None, left: int, what: str) -> int:
    """Add a part if it fits, or note that it does not; return what remains of the budget."""
    if value is None:
        return left
    if _weight(value) > left:
        scene["left_out"].append(f"left out {what} ({readable(_weight(value))})")
        return left
    scene[name] = value
    return left - _weight(value)


def _weight(part: Any) -> int:
    """Estimate the number of characters of a part as JSON, without writing it."""
    if isinstance(part, dict):
        return sum(len(k) + 6 + _weight(v) for k, v in part.items())
    if isinstance(part, list):
        return sum(2 + _weight(v) for v in part)
    return len(part) * (1 if str(part).isascii() else 6) if isinstance(part, str) else 12


def _most(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.max()) if there.size else 0.0
