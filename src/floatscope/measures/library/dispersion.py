"""Dispersion: does the strongest key stand at the same place in every example?

It looks across examples at one state of each; movement within one decoding is Drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...stats.chance import Chance
from ...stats.intervals import DRAWS
from ...trace import Trace
from ..base import Measure
from ..result import Result
from ..style import Figure, band, panels


@dataclass(frozen=True)
class Dispersion(Measure):
    """Entropy over examples of where the strongest key stands, layer by layer.

    Attention Floating (2601.07894) §3. `position`: of the key that receives most, head mean, as a
    share of the length (0 first, 1 last); `first`: the share of examples where it is position 0;
    `dispersion`: entropy of the histogram of positions over its maximum ln min(bins, examples), 0 =
    always one place. `at` chooses the kept step, 0 the first and 1 the last. Null: positions drawn
    uniformly, for the entropy by simulation with as many examples (few examples cannot fill the
    bins, so its null is below 1). Interval: bootstrap over examples, centred on the value, because
    drawing examples again can only lose places. One example has no dispersion: NaN.
    """

    at: float = 0.5
    bins: int = 10
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

    def of(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        result = super().of(examples, model)
        place = result.examples["position"].transpose("example", "layer").values
        place = np.minimum((place * self.bins).astype(int), self.bins - 1)
        data, rng, n = result.data, np.random.default_rng(0), len(place)
        there = place[..., None] == np.arange(self.bins)  # (example, layer, bin)
        value = _entropy(there.sum(0), n)
        weight = rng.multinomial(n, np.full(n, 1 / n), size=DRAWS)
        drawn = _entropy(np.einsum("de,elb->dlb", weight, there), n)
        low, high = np.quantile(drawn - drawn.mean(0), [0.025, 0.975], axis=0) + value
        chance = np.mean([one.attrs["places"] for one in examples], axis=0)
        null = _entropy(rng.multinomial(n, chance / chance.sum(), size=DRAWS), n).mean()
        unit = {"units": self.units["dispersion"]}
        for end, array in {"": value, "_low": low.clip(0, 1), "_high": high.clip(0, 1)}.items():
            data[f"dispersion{end}"] = xr.DataArray(array, dims="layer", attrs=unit)
        data["dispersion_null"] = xr.DataArray(null, attrs=unit)
        data["dispersion_lift"] = (data["dispersion"] / null).assign_attrs({"units": "×"})
        result.values.append("dispersion")
        return result

    def _step(self, trace: Trace) -> int:
        return round(self.at * (trace.data.sizes["step"] - 1))

    def _chance(self, trace: Trace) -> Chance:
        """Random attention of this trace's direction: a causal one favours the first keys."""
        at = {"step": self._step(trace)}
        received = trace.received.isel(at).mean("head").transpose("layer", "key").values
        return Chance(np.nan_to_num(trace.data["visible"].isel(at).values), received)

    def one(self, trace: Trace) -> xr.Dataset:
        received = trace.received.isel(step=self._step(trace)).mean("head")
        size = int(received.notnull().any("layer").sum())
        top = received.fillna(-1).argmax("key").drop_vars("step")
        chance = self._chance(trace)
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
        with panels(1, 2) as (figure, axes):
            places, entropy = axes[0]
            cloud = result.examples["position"].transpose("example", "layer").values
            jitter = np.random.default_rng(0).uniform(-0.25, 0.25, cloud.shape)
            layer = result.data["layer"].values
            places.scatter(layer + jitter, cloud, s=9, color="0.25", alpha=0.6, linewidths=0)
            places.set(xlabel="layer", ylabel="strongest key, share of length", ylim=(-0.03, 1.03))
            band(entropy, result, "dispersion", "layer", label="dispersion")
            band(entropy, result, "first", "layer", series=1, label="at position 0")
            entropy.set(ylabel="share (dotted: null)", ylim=(-0.03, 1.03))
            entropy.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)
            title = f"{result.model}, n = {result.n}; one dot per example"
            figure.suptitle(title, fontsize=8, x=0.01, ha="left")
        return figure


def _entropy(counts: np.ndarray, n: int) -> np.ndarray:
    """Of histograms along the last axis, over the largest that n examples can have."""
    p = counts / counts.sum(-1, keepdims=True)
    most = np.log(min(n, counts.shape[-1])) if n > 1 else np.nan
    return abs((p * np.log(np.where(p > 0, p, 1))).sum(-1)) / most
