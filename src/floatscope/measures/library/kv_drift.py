"""K/V drift: how far keys and values rotate between steps, for unchanged and for changed tokens."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import LOG, Figure, lines
from ...trace import Trace
from ..base import Measure, by_layer
from ..result import Result

KINDS = ("prompt", "masked", "revealed", "changed")
VALUES = tuple(f"{side}_{kind}" for side in ("key", "value") for kind in KINDS)


@dataclass(frozen=True)
class KVDrift(Measure):
    """1 − cosine of keys and values between each kept step and the previous kept step. See 2505.15781.

    The values are by layer, as means over heads, steps and the positions of a kind: `key_prompt`,
    `value_prompt` and so on.

    - `…_prompt`: positions of the prompt
    - `…_masked`: positions that are masked in both steps
    - `…_revealed`: positions with the same token in both steps
    - `…_changed`: positions whose token differs from the previous step, mostly newly revealed positions

    The value 0 means that the direction did not change, as a cache assumes. Keys are used after rotary
    embedding, whose angle at a position is the same at every step. The values are NaN at the first kept step,
    and for a causal model with a KV cache, whose keys never change. There is no null; compare kinds and
    layers with each other, and with an untrained model.
    """

    needs: ClassVar[tuple[str, ...]] = ("kv_drift",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = dict.fromkeys(VALUES, "1 − cos")

    def compute(self, trace: Trace) -> xr.Dataset:
        kinds, drifts = _kinds(trace), {"key": trace.key_drift, "value": trace.value_drift}
        parts = {name: name.split("_") for name in VALUES}
        values = {name: drifts[side].where(kinds == kind) for name, (side, kind) in parts.items()}
        return xr.Dataset({name: by_layer(value) for name, value in values.items()})

    def plot(self, result: Result) -> Figure:
        sides = ("key", "value")
        panels = [(f"{s}s, 1 − cos", {f"{s}_{kind}": kind for kind in KINDS}, LOG) for s in sides]
        return lines(result, *panels, note=": since the step before")


def _kinds(trace: Trace) -> xr.DataArray:
    """Return the kind of each position (prompt, masked, revealed, changed) by step, as (step, key)."""
    canvas, masked = trace.canvas.values[trace.data["step"].values], trace.data["masked"]
    kind = np.where(trace.data["region"].values == "answer", "revealed", "prompt")
    kind = np.where(masked, "masked", kind)
    kind[1:] = np.where(canvas[1:] != canvas[:-1], "changed", kind[1:])
    return masked.copy(data=kind)
