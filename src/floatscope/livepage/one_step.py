"""Pack the attention of one step like a scene: what `scenes.parts` packs of a complete trace.

It uses the same definitions on plain arrays: the step is sent while the next one waits, and labels cost as
much as the numbers. `tests/test_live_runs.py` compares both.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..scenes.codec import pack_index, pack_log, text_size
from ..scenes.parts import TOP_ANCHORS, TOP_HEAD_ANCHORS, strongest
from ..stats.anchors import Rule

_HEAVY = 500_000  # characters of all heads at one step: beyond, they are asked for


def attention_of(
    columns: Float[np.ndarray, "group layer head key"],
    rows: Int[np.ndarray, " group"],
    visible: Float[np.ndarray, " key"],
    chance: Float[np.ndarray, " key"],
    groups: list[str],
    rule: Rule,
) -> dict[str, Any]:
    """Pack a step's attention from its column sums, the rows of each group, and the rows that see a key."""
    total = columns.sum(0)  # NaN where a key is not there yet
    mass, received = total / np.float32(rows.sum()), total / visible
    share, by_layer = mass.mean(1), received.mean(1)  # (layer, key)
    both = np.concatenate([by_layer, by_layer.mean(0, keepdims=True)])
    passed = rule.passes(both)
    known = np.where(np.isnan(mass), -1, mass)
    peak = known.max(-1)
    scene: dict[str, Any] = {
        "null": pack_log(chance[None]),
        "reach": pack_log((visible / rows.sum())[None]),
        "share": pack_log(share[None]),
        "anchors": pack_index(strongest(both, passed, TOP_ANCHORS)[None]),
        "anchor_count": pack_index(passed.sum(-1)[None]),
        "peak": pack_log(peak[None]),
        "peak_key": pack_index(known.argmax(-1)[None]),
        "single_heads": None,
        "range": {"share": float(np.nanmax(share)), "head": float(peak.max())},
    }
    if len(groups) > 1:
        of_group = np.where(rows > 0, rows, np.nan)[:, None, None]
        shares = columns.mean(2) / of_group  # (group, layer, key)
        scene["from"] = {"names": groups, "share": pack_log(shares[None], "uint8")}
    if text_size(mass.size, "uint8") <= _HEAVY:
        anchors = strongest(received, rule.passes(received), TOP_HEAD_ANCHORS)
        scene["single_heads"] = {
            "kept": [0],
            "share": pack_log(mass[None], "uint8"),
            "anchors": pack_index(anchors[None]),
        }
    return scene
