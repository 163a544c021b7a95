"""Turn a trace into a scene: the data that the viewer shows for one example and one model, as JSON.

A scene has a budget of characters. Data that do not fit are left out in a fixed order: first the precision of
single heads, then some steps of single heads, then the rows, then some steps of the scene. `left_out` lists
the data that are left out. Nothing is measured here: all values come from the trace or from an anchor rule.
"""

from collections.abc import Iterable, Mapping
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
    blocks,
    gold_look,
    heads_that_fit,
    name_of,
    pack_attention,
    pack_groups,
    pack_heads,
    rows,
    sizes_of,
    spread,
)
from .words import example_name, title_of, words

FORMAT = 1
BUDGET = 1_200_000  # characters of one scene in a page
SERVED = 32_000_000  # … of one that is stored to be served by itself: 24 MB before compression
_MODEL = ("model", "family", "direction", "fingerprint", "sampler", "dtype", "ended")
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
    """Turn a trace into a scene of about `budget` characters of JSON at most.

    Scenes with the same `example` are shown side by side; by default `example` is computed from the prompt.
    `rule` selects anchors, by default `ZScore()`. With `fetched`, the viewer can request single heads later,
    and single heads are left out if not all of their steps fit.
    """
    require_global(trace.data, "the viewer")
    rule = rule or ZScore()
    steps, notes = _fitting_steps(trace, budget)
    arrays = attention(blocks(trace, steps), rule)
    gold_shares = gold_look(trace, steps)
    names = {"example": example, "title": title}
    scene: Scene = {
        **header_of(trace, rule),
        **{name: text for name, text in names.items() if text},
        "answer": trace.text,
        "steps": [int(s) for s in trace.data["step"].values[steps]],
        **words(trace, steps),
        **pack_attention(arrays, trace.null.isel(step=steps).values),
        **({} if gold_shares is None else {"gold_look": pack_log(gold_shares, "uint8")}),
        "left_out": notes,
    }
    characters_left = budget - _weight(scene)
    characters_left = _put(
        scene, "rows", rows(trace), characters_left, "the rows of revealed positions"
    )
    groups = pack_groups(arrays, trace.data["group"].values)
    characters_left = _put(scene, "from", groups, characters_left, "who looks, by group of queries")
    scene["single_heads"] = single_heads(
        trace, rule, steps, characters_left, notes, fetched=fetched
    )
    limit = rule.limit(int(arrays["there"].min()))
    if limit:
        notes.append(limit)
    return scene


def header_of(trace: Trace, rule: Rule) -> Scene:
    """Return the part of a trace's scene that is the same at all steps."""
    return header(
        trace.data["final_token"].values[: int(trace.info["prompt_length"])],
        trace.data["region"].values,
        {**trace.info, "interventions": trace.interventions},
        rule,
        ticks=trace.n_steps,
        layers=trace.data["layer"].values.tolist(),
        heads=trace.data["head"].values.tolist(),
    )


def header(
    prompt: Iterable[object],
    regions: Iterable[object],
    info: Mapping[str, Any],
    rule: Rule,
    *,
    ticks: int,
    layers: Iterable[int],
    heads: Iterable[int],
) -> Scene:
    """Return the part of a scene that is the same at all steps.

    Args:
        prompt: Text of each token of the prompt.
        regions: Region of each position.
        info: `Trace.info`, or its known fields while a decoding is still running.
        rule: The rule that selects anchors.
        ticks: Number of steps, including steps that are still to come.
        layers, heads: Indices of the layers and heads.
    """
    spelled, by_position = list(map(str, prompt)), list(map(str, regions))
    names = list(dict.fromkeys(by_position))
    return {
        "format": FORMAT,
        "example": example_name(spelled),
        "title": title_of(spelled, by_position),
        "model": {k: str(info.get(k, "")) for k in _MODEL},
        "under": list(info["interventions"]),
        "prompt_length": len(spelled),
        "gold": str(info["gold"]),
        "ticks": ticks,
        "layers": list(layers),
        "heads": list(heads),
        "regions": names,
        "region": pack_index([names.index(region) for region in by_position]),
        "rule": name_of(rule),
    }


def single_heads(
    trace: Trace,
    rule: Rule,
    steps: np.ndarray,
    left: int,
    notes: list[str],
    *,
    fetched: bool = False,
) -> Scene | None:
    """Pack the attention of single heads, for as many steps as fit into `left` characters.

    Steps that do not fit are described in `notes`. Return None if no step fits. With `fetched`, the viewer
    can request single heads later; return None if not all steps fit.
    """
    dtype, kept_steps = heads_that_fit((len(steps), *sizes_of(trace)[1:]), left)
    if len(kept_steps) < len(steps):
        if fetched:
            return None
        notes.append(f"single heads for {len(kept_steps)} of {len(steps)} steps")
    return pack_heads(blocks(trace, steps[kept_steps]), rule, dtype, kept_steps)


def _fitting_steps(trace: Trace, budget: int) -> tuple[np.ndarray, list[str]]:
    """Return the indices of the kept steps that fit, evenly spaced, and notes on steps that are left out.

    The characters that single heads need are not counted.
    """
    n, layers, heads, size = sizes_of(trace)
    fixed = 4000 + 12 * size
    per_step = text_size(size * (2 * layers + 5), "uint16") // 2 + text_size(size * 5, "uint16")
    per_step += text_size(layers * (TOP_ANCHORS + 1) + 3 * layers * heads, "uint16")
    fit = (budget - fixed) // per_step
    if fit < min(n, 2):
        raise UsageError(
            f"a scene of {layers} layers × {size} positions does not fit into {budget} bytes",
            f"Give it a budget of at least {fixed + 2 * per_step}.",
        )
    chosen = spread(n, int(fit))
    notes = [] if len(chosen) == n else [f"sampled {len(chosen)} of {n} steps"]
    if n < trace.n_steps:
        notes.append(f"the trace kept {n} of {trace.n_steps} steps")
    return chosen, notes


def _put(scene: Scene, name: str, value: Scene | None, left: int, what: str) -> int:
    """Add a part to a scene, or to the list `left_out` if it does not fit; return the characters left."""
    if value is None:
        return left
    if _weight(value) > left:
        scene["left_out"].append(f"left out {what} ({readable(_weight(value))})")
        return left
    scene[name] = value
    return left - _weight(value)


def _weight(part: Any) -> int:
    """Estimate the number of characters of a part of a scene as JSON, without encoding it."""
    if isinstance(part, dict):
        return sum(len(k) + 6 + _weight(v) for k, v in part.items())
    if isinstance(part, list):
        return sum(2 + _weight(v) for v in part)
    return len(part) * (1 if str(part).isascii() else 6) if isinstance(part, str) else 12
