"""Dispersion across examples: does the strongest key stand at the same place in every one?"""

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
    """Entropy over examples of where the strongest key stands, layer by layer.

    Attention Floating (2601.07894) §3. `position`: of the key that receives most, head mean, as a
    share of the length (0 first, 1 last); `first`: the share of examples where it is position 0;
    `dispersion`: entropy of the positions' distribution over its maximum ln bins, 0 = always one
    place. It is estimated by Miller and Madow's correction with a jackknife's interval (published as
    the entropy of the histogram, which is too small for few examples). `at` chooses the kept step, 0 the
    first and 1 the last. Null: places of random attention, for the entropy by simulation with as many
    examples. One example has no dispersion: NaN.
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
        kept = trace.at_step(round(self.at * (trace.data.sizes["step"] - 1)))
        received = kept.mean_received.isel(step=0, drop=True).transpose("layer", "key")
        size = int(received.notnull().any("layer").sum())
        top = received.fillna(-1).argmax("key")
        # Random attention of this trace's direction: a causal one favours the first keys.
        chance = Chance(np.nan_to_num(kept.data["visible"].values[0]), received.values)
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
            axis.scatter(layer + jitter, cloud, s=9, color="0.25", alpha=0.6, linewidths=0)
            axis.set(xlabel="layer", ylabel="strongest key, share of length", ylim=SHARE)

        shares = {"dispersion": "dispersion", "first": "at position 0"}
        drawn = ("share (dotted: null)", shares, SHARE)
        return lines(result, draw_places, drawn, note="; one dot per example")
