"""Dynamics: how much the attention that a key receives rises, from layer to layer and step to step.

The size of rises, for every key, anchor or not. It does not say which keys are anchors (the rules do)
nor whether they stay (Drift does).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...stats.chance import profile
from ...trace import Trace
from ..base import Measure
from ..result import Result
from ..style import COLOURS, Figure, band, headline, panels


@dataclass(frozen=True)
class Dynamics(Measure):
    """Mean positive change of received attention (PAD, 2602.15556), over layers and over steps.

    P_j = mean of max(0, c_j of the next state − c_j), on the head mean. `layers` is the mean over keys
    of P between neighbouring layers, for each step; `steps` that between neighbouring kept steps, for
    each layer; `region_layers` and `region_steps` are the mean P of the keys of each region. Null of
    the first two: the next state's attention dealt anew among the keys (as lifts, so that a causal
    model's early keys keep what they get for nothing), exact for the two states; lift 1 = nothing
    stays in place, 0 = nothing moves. Null of the regions: the mean P over all keys. One layer or
    one step has no change: NaN.
    """

    units: ClassVar[dict[str, str]] = dict.fromkeys(
        ("layers", "steps", "region_layers", "region_steps"), "attention per key"
    )

    def compute(self, trace: Trace) -> xr.Dataset:
        received = trace.received.mean("head").transpose("step", "layer", "key").values
        uniform = np.full(trace.data["visible"].shape, np.nan)
        for t, visible in enumerate(trace.data["visible"].values):
            there = visible > 0
            uniform[t, there] = profile(visible[there].astype(float))[0]
        c, u = received.astype(np.float64), uniform[:, None] + 0 * received
        values, region = xr.Dataset(), trace.data["region"].values
        for name, axis, by in (("layers", 1, "step"), ("steps", 0, "layer")):
            rise, null = _rises(np.moveaxis(c, axis, 0), np.moveaxis(u, axis, 0))
            coords = {by: trace.data[by].values}
            values[name] = xr.DataArray(_mean(rise, (0, 2)), dims=by, coords=coords)
            values[f"{name}_null"] = xr.DataArray(_mean(null, 0), dims=by, coords=coords)
            per_key = _mean(rise, (0, 1))
            names = list(dict.fromkeys(map(str, region)))
            of_region = [_mean(per_key[region == r], 0) for r in names]
            values[f"region_{name}"] = xr.DataArray(
                of_region, dims="region", coords={"region": names}
            )
            values[f"region_{name}_null"] = xr.DataArray(_mean(per_key, 0))
        return values

    def plot(self, result: Result) -> Figure:
        with panels(1, 3, width=2.6) as (figure, axes):
            layers, steps, regions = axes[0]
            band(layers, result, "layers", "step")
            layers.set_ylabel("rise, layer to layer")
            band(steps, result, "steps", "layer")
            steps.set_ylabel("rise, step to step")
            names = [str(r) for r in result.data["region"].values]
            for i, name in enumerate(("region_layers", "region_steps")):
                lift = result.data[f"{name}_lift"].values
                y = np.arange(len(names)) + (i - 0.5) * 0.25
                label = ("over layers", "over steps")[i]
                regions.plot(lift, y, "os"[i], color=COLOURS[i], markersize=4, label=label)
            regions.axvline(1, color="0.4", linestyle=":", linewidth=0.8)
            regions.set_yticks(range(len(names)), names)
            regions.invert_yaxis()
            regions.set_xscale("log")
            regions.tick_params(axis="x", which="minor", labelbottom=False)
            regions.set_xlabel("rise / mean over all keys")
            regions.legend(loc="lower left", bbox_to_anchor=(-0.1, 1), ncols=2, borderpad=0)
            for axis in (layers, steps):
                axis.set_ylim(bottom=0)
                axis.xaxis.get_major_locator().set_params(integer=True)
            title = f"{result.model}, n = {result.n} (dotted: null)"
            headline(figure, title)
        return figure


def _rises(c: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(states, other, keys) → rises (states − 1, other, keys) and their null (states − 1, other)."""
    rise = np.maximum(np.diff(c, axis=0), 0)  # NaN where a key is not there in both
    null = np.full(rise.shape[:2], np.nan)
    for t, o in np.ndindex(*null.shape):
        both = ~np.isnan(rise[t, o])
        mean, now = uniform[t, o, both], c[t, o, both] / uniform[t, o, both]
        then = np.sort(c[t + 1, o, both] / uniform[t + 1, o, both])
        # mean over k of max(0, then_k − now_j), by sums from the end: never keys × keys
        above = np.searchsorted(then, now)
        tail = np.append(np.cumsum(then[::-1])[::-1], 0.0)[above]
        null[t, o] = (mean * (tail - (len(then) - above) * now)).mean() / len(then)
    return rise, null


def _mean(array: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Mean of what is there; NaN, without a warning, where nothing is."""
    there = ~np.isnan(array)
    count = there.sum(axis)
    total = np.where(there, array, 0.0).sum(axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))
