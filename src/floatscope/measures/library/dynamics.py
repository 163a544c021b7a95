"""Dynamics: how much the attention that keys receive increases between layers and between steps."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...plots import COLOURS, POSITIVE, Axes, Figure, legend_above, lines
from ...trace import Trace
from ..base import Measure
from ..nulls import uniform_received
from ..result import Result


@dataclass(frozen=True)
class Dynamics(Measure):
    """Mean positive change of received attention (PAD, 2602.15556), over layers and over steps.

    A state is a layer or a step. c_j is the attention that key j receives (mean over heads), and P_j is the
    mean of max(0, next c_j − c_j) over pairs of neighbouring states:

    - `layers`: mean P over keys between neighbouring layers, by step
    - `steps`: mean P over keys between neighbouring kept steps, by layer
    - `region_layers`, `region_steps`: mean P of the keys of each region

    The null of `layers` and `steps` is the exact expectation if the lifts of the next state are permuted
    among the keys. A lift of 1 is as much change as by chance, and a lift of 0 is no change. The null of the
    regions is the mean P over all keys. With a single layer or step, the values are NaN.
    """

    needs: ClassVar[tuple[str, ...]] = ("head_mean",)
    units: ClassVar[dict[str, str]] = dict.fromkeys(
        ("layers", "steps", "region_layers", "region_steps"), "attention per key"
    )

    def compute(self, trace: Trace) -> xr.Dataset:
        c = trace.mean_received.transpose("step", "layer", "key").values.astype(np.float64)
        uniform = uniform_received(trace).transpose("step", "key").values[:, None]
        lift = c / uniform
        values: dict[str, Any] = {}
        region = trace.data["region"].values
        names = list(dict.fromkeys(map(str, region)))
        for name, axis, by in (("layers", 1, "step"), ("steps", 0, "layer")):
            rise = np.maximum(np.diff(c, axis=axis), 0)  # NaN for keys absent in either state
            null = _permuted_rise(np.moveaxis(lift, axis, 0), np.moveaxis(uniform + 0 * c, axis, 0))
            per_key = _mean(rise, (0, 1))
            values |= {
                name: (by, _mean(rise, (axis, 2))),
                f"{name}_null": (by, _mean(null, 0)),
                f"region_{name}": ("region", [_mean(per_key[region == r], 0) for r in names]),
                f"region_{name}_null": ((), _mean(per_key, 0)),
            }
        return xr.Dataset(values, {"region": names})

    def plot(self, result: Result) -> Figure:
        def draw_regions(axis: Axes) -> None:
            names = [str(name) for name in result.data["region"].values]
            for i, over in enumerate(("layers", "steps")):
                y = np.arange(len(names)) + (i - 0.5) * 0.25
                style: Any = {"color": COLOURS[i], "markersize": 4, "label": f"over {over}"}
                axis.plot(result.data[f"region_{over}_lift"].values, y, "os"[i], **style)
            axis.axvline(1, color="0.4", linestyle=":", linewidth=0.8)
            axis.set_yticks(range(len(names)), names)
            axis.invert_yaxis()
            axis.set_xscale("log")
            axis.tick_params(axis="x", which="minor", labelbottom=False)
            axis.set_xlabel("rise / mean over all keys")
            legend_above(axis)

        return lines(
            result,
            ("rise, layer to layer", "layers", POSITIVE),
            ("rise, step to step", "steps", POSITIVE),
            draw_regions,
            note=" (dotted: null)",
            width=2.6,
        )


def _permuted_rise(lift: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return the mean rise to the next state if the next state's lifts were permuted among the keys.

    Both arrays have the shape (states, other, keys); absent keys are NaN. The result has the shape
    (states − 1, other).
    """
    null = np.full((max(len(lift) - 1, 0), lift.shape[1]), np.nan)
    for t, o in np.ndindex(*null.shape):
        before, after, mean = lift[t, o], lift[t + 1, o], uniform[t, o]
        defined = ~np.isnan(before + after)
        before, after, mean = before[defined], after[defined], mean[defined]
        order, after = np.argsort(before), np.sort(after)  # sorted keys are found faster
        before, mean = before[order], mean[order]
        # Σ_k max(0, then_k − now_j) from reversed cumulative sums, without a keys × keys array.
        above = np.searchsorted(after, before)
        tail = np.append(np.cumsum(after[::-1])[::-1], 0.0)[above]
        null[t, o] = mean @ (tail - (len(after) - above) * before) / len(after) ** 2
    return null


def _mean(array: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Average the values that are not NaN; NaN, without a warning, if there are none."""
    count = (~np.isnan(array)).sum(axis)
    return np.asarray(np.nansum(array, axis) / np.where(count > 0, count, np.nan))
