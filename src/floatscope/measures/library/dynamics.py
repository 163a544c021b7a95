"""Dynamics: how much the attention that a key receives rises, from layer to layer and step to step.

The size of rises, for every key, anchor or not. It does not say which keys are anchors (the rules do)
nor whether they stay (Drift does).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import COLOURS, Figure, band, headline, panels
from ...stats.chance import profile
from ...trace import Trace
from ..base import Measure
from ..result import Result


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

    needs: ClassVar[tuple[str, ...]] = ("head_mean",)
    units: ClassVar[dict[str, str]] = dict.fromkeys(
        ("layers", "steps", "region_layers", "region_steps"), "attention per key"
    )

    def compute(self, trace: Trace) -> xr.Dataset:
        c = trace.mean_received.transpose("step", "layer", "key").values.astype(np.float64)
        uniform = np.full((len(c), 1, c.shape[-1]), np.nan)
        for t, visible in enumerate(trace.data["visible"].values):
            there = visible > 0
            uniform[t, 0, there] = profile(visible[there].astype(float))[0]
        lift = c / uniform
        values, region = xr.Dataset(), trace.data["region"].values
        names = list(dict.fromkeys(map(str, region)))
        for name, axis, by in (("layers", 1, "step"), ("steps", 0, "layer")):
            rise = np.maximum(np.diff(c, axis=axis), 0)  # NaN where a key is not there in both
            null = _dealt(np.moveaxis(lift, axis, 0), np.moveaxis(uniform + 0 * c, axis, 0))
            per_key = _mean(rise, (0, 1))
            values = values.assign_coords({by: trace.data[by].values, "region": names})
            values[name] = by, _mean(rise, (axis, 2))
            values[f"{name}_null"] = by, _mean(null, 0)
            values[f"region_{name}"] = "region", [_mean(per_key[region == r], 0) for r in names]
            values[f"region_{name}_null"] = (), _mean(per_key, 0)
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
            headline(figure, f"{result.model}, n = {result.n} (dotted: null)")
        return figure


def _dealt(lift: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The mean rise to the next state if its lifts were dealt anew among the keys: (states − 1, other).

    Both arrays are (states, other, keys), NaN where a key is not there.
    """
    null = np.full((max(len(lift) - 1, 0), lift.shape[1]), np.nan)
    some_absent = np.isnan(lift).any()
    for t, o in np.ndindex(*null.shape):
        now, then, mean = lift[t, o], lift[t + 1, o], uniform[t, o]
        if some_absent:
            both = ~np.isnan(now + then)
            now, then, mean = now[both], then[both], mean[both]
        order, then = np.argsort(now), np.sort(then)  # in order, they are found faster
        now, mean = now[order], mean[order]
        # Sum over k of max(0, then_k − now_j), by sums from the end: never keys × keys.
        above = np.searchsorted(then, now)
        tail = np.append(np.cumsum(then[::-1])[::-1], 0.0)[above]
        null[t, o] = mean @ (tail - (len(then) - above) * now) / len(then) ** 2
    return null


def _mean(array: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Mean of what is there; NaN, without a warning, where nothing is."""
    there = ~np.isnan(array)
    count = there.sum(axis)
    total = np.where(there, array, 0.0).sum(axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))
