"""Dispersion: whether the strongest key is at the same position in every example."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...plots import SHARE, Axes, Figure, lines
from ...stats.chance import Chance
from ...stats.intervals import entropy
from ...trace import Trace
from ..base import Measure
from ..result import Result

_DRAWS = 1000  # for the null


@dataclass(frozen=True)
class Dispersion(Measure):
    """Entropy over examples of the strongest key's position, layer by layer.

    Defined in Attention Floating (2601.07894), §3. The strongest key is the key that receives most attention,
    on the mean over heads. The values are by layer:

    - `position`: position of the strongest key as a share of the length (0 first, 1 last)
    - `first`: share of examples whose strongest key is at position 0
    - `dispersion`: entropy of the position, divided by the maximum ln `bins`; 0: the same bin in every
      example. The entropy is estimated with Miller and Madow's correction, with a jackknife interval. The
      paper uses the entropy of the histogram, which is too small for few examples

    The null is random attention. The null of the entropy is simulated with the same number of examples. With
    one example, the dispersion is NaN.

    Args:
        at (float): The kept step to read, as a share: 0 is the first, 1 the last; 0.5 by default.
        bins (int): Number of bins of the position, 2 or more; 10 by default.
    """

    at: float = 0.5
    bins: int = 10
    needs: ClassVar[tuple[str, ...]] = ("head_mean",)
    units: ClassVar[dict[str, str]] = {
        "position": "share of length",
        "first": "share",
        "dispersion": "share of maximum",
    }

    def __post_init__(self) -> None:
        if not 0 <= self.at <= 1 or self.bins < 2:
            raise UsageError(
                f"Dispersion(at={self.at}, bins={self.bins})", "Use 0 ≤ at ≤ 1 and bins ≥ 2."
            )

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Combine the values of all examples, and add the dispersion of their positions."""
        result = super().summarise(examples, model)
        data, n = result.data, result.n
        place = result.examples["position"].transpose("example", "layer").values
        ends = entropy(np.minimum((place * self.bins).astype(int), self.bins - 1), self.bins)
        chance = np.mean([example.attrs["places"] for example in examples], axis=0)
        rng = np.random.default_rng(0)
        drawn = rng.choice(self.bins, p=chance / chance.sum(), size=(n, _DRAWS))
        null = entropy(drawn, self.bins)[0].mean()
        unit = {"units": self.units["dispersion"]}
        for end, array in zip(("", "_low", "_high"), ends, strict=True):
            data[f"dispersion{end}"] = "layer", array, unit
        data["dispersion_null"] = (), null, unit
        data["dispersion_lift"] = (data["dispersion"] / null).assign_attrs({"units": "×"})
        result.values.append("dispersion")
        return result

    def compute(self, trace: Trace) -> xr.Dataset:
        snapshot = trace.at_step(round(self.at * (trace.data.sizes["step"] - 1)))
        received = snapshot.mean_received.isel(step=0, drop=True).transpose("layer", "key")
        size = int(received.notnull().any("layer").sum())
        top = received.fillna(-1).argmax("key")
        # Random attention in the trace's direction, because causal attention favours the first keys.
        chance = Chance(np.nan_to_num(snapshot.data["visible"].values[0]), received.values)
        return xr.Dataset(
            {
                "position": top / max(size - 1, 1),
                "position_null": chance.position,
                "first": (top == 0).astype(float),
                "first_null": chance.first,
            },
            attrs={"places": chance.histogram(self.bins).tolist()},
        )

    def plot(self, result: Result) -> Figure:
        def draw_places(axis: Axes) -> None:
            cloud = result.examples["position"].transpose("example", "layer").values
            jitter = np.random.default_rng(0).uniform(-0.25, 0.25, cloud.shape)
            layer = result.data["layer"].values
            axis.scatter(layer + jitter, cloud, s=9, color="0.45", alpha=0.6, linewidths=0)
            axis.set(xlabel="layer", ylabel="strongest key, share of length", ylim=SHARE)

        shares = {"dispersion": "dispersion", "first": "at position 0"}
        drawn = ("share (dotted: null)", shares, SHARE)
        return lines(result, draw_places, drawn, note="; one dot per example")
