"""Massive activations: positions and layers at which one residual channel far exceeds the others."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...plots import LOG, POSITIVE, Figure, lines
from ...trace import Trace
from ..base import Measure, by_layer, log_mean
from ..result import Result

_NORMAL = NormalDist()
_MEDIAN = _NORMAL.inv_cdf(0.75)  # median of |x| of a standard normal


@dataclass(frozen=True)
class MassiveActivations(Measure):
    """Largest residual channel over the median one, max |x| / median |x|. Sun et al. 2402.17762.

    The values are by layer, from the residual at the layer's input. Means over steps are means of logarithms.

    - `largest`: the ratio at the position where it is largest
    - `first`: the ratio at position 0
    - `typical`: the median ratio over positions
    - `count`: number of positions whose ratio is above `threshold`
    - `same_channel`: share of these positions whose largest channel is the channel that is most often the
      largest in the layer; NaN without such positions

    The null is the median ratio of independent normal channels.

    Args:
        threshold (float): Ratio above which a position counts as massive; above 1, 100 by default.
    """

    threshold: float = 100.0
    needs: ClassVar[tuple[str, ...]] = ("massive",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("largest", "first", "typical"), "×"),
        "count": "positions",
        "same_channel": "share",
    }

    def __post_init__(self) -> None:
        if not self.threshold > 1:
            raise UsageError(f"threshold = {self.threshold}", "Use a ratio to the median, above 1.")

    def compute(self, trace: Trace) -> xr.Dataset:
        ratio = trace.massive.where(np.isfinite(trace.massive))
        over = ratio > self.threshold
        values = {
            "largest": log_mean(ratio.max("key")),
            "first": log_mean(ratio.isel(key=0)),
            "typical": log_mean(ratio.median("key")),
            "count": by_layer(over.sum("key").astype(float)),
            "same_channel": _shared(trace.massive_channel, over),
        }
        width, size = int(trace.info.get("width", 0)), int(ratio.notnull().sum("key").max())
        nulls = dict.fromkeys(("largest", "first", "typical", "count"), np.nan)
        if width:
            largest, single = _normal_peak(width * size), _normal_peak(width)
            below = 2 * _NORMAL.cdf(self.threshold * _MEDIAN) - 1
            count = size * (1 - below**width)
            nulls = {"largest": largest, "first": single, "typical": single, "count": count}
        flat = {f"{name}_null": xr.full_like(values[name], x) for name, x in nulls.items()}
        return xr.Dataset({**values, **flat}, attrs={"most": {"count": size}})

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("max |x| / median |x|", {name: name for name in ("largest", "first", "typical")}, LOG),
            (f"positions over {self.threshold:g}×", "count", POSITIVE),
            note=": residual channels (dotted: null)",
        )


def _shared(channel: xr.DataArray, over: xr.DataArray) -> xr.Variable:
    """Return, by layer, the share of positions in `over` with the most frequent channel; NaN without any."""
    shares = []
    for layer in channel["layer"].values:
        channels = channel.sel(layer=layer).values[over.sel(layer=layer).values]
        counts = np.unique(channels, return_counts=True)[1]
        shares.append(counts.max() / counts.sum() if len(counts) else np.nan)
    return xr.Variable("layer", shares)


def _normal_peak(count: int) -> float:
    """Return the median of the largest |x| of `count` standard normal x, divided by the median |x|."""
    return _NORMAL.inv_cdf((1 + 0.5 ** (1 / count)) / 2) / _MEDIAN
