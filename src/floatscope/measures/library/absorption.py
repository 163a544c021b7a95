"""Absorption: how much attention anchors receive, layer by layer."""

from dataclasses import dataclass
from typing import ClassVar

import xarray as xr

from ...plots import POSITIVE, Figure, lines
from ...trace import Trace
from ..base import AnchorMeasure
from ..nulls import uniform_received
from ..result import Result


@dataclass(frozen=True)
class Absorption(AnchorMeasure):
    """Share of attention on anchors, on position 0 and on the strongest key, and the number of anchors.

    Defined in Attention Floating (2601.07894), §3. The values are by layer, as means over steps and, for a
    rule per head, over heads:

    - `absorption`: share of attention on anchors
    - `first`: share of attention on position 0
    - `top`: share of attention on the strongest key
    - `anchors`: number of anchors

    The null of each share is uniform attention on the same keys. Anchors and the strongest key are chosen by
    the attention that they receive, so their lift is slightly above 1 even for random attention (1.1–1.2 at
    32–128 keys). The null of `anchors` is the number of keys that the rule finds under uniform attention.
    """

    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("absorption", "first", "top"), "share"),
        "anchors": "keys",
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        # Variables without labels, because every operation would align labelled arrays again.
        mass = (trace.mass if self.rule.per_head else trace.mean_mass).variable
        null, anchor = trace.null.variable, self.rule(trace).variable
        # dimensions to average over, after the keys
        other_dims = [d for d in mass.dims if d not in ("layer", "key")]
        first = mass.isel(key=0)
        values = {
            "absorption": mass.where(anchor, 0).sum("key"),
            "absorption_null": null.where(anchor, 0).sum("key"),
            "first": first,
            "first_null": null.isel(key=0) + 0 * first,
            "top": mass.max("key"),
            "top_null": null.isel(key=mass.fillna(-1).argmax("key")),
            "anchors": anchor.sum("key"),
            "anchors_null": self._by_chance(trace) + 0 * first,
        }
        means = {name: value.mean(other_dims) for name, value in values.items()}
        return xr.Dataset(means, attrs={"most": {"anchors": mass.sizes["key"]}})

    def _by_chance(self, trace: Trace) -> xr.Variable:
        """Count the keys that the rule finds under uniform attention; 0 where all keys receive the same."""
        received = uniform_received(trace)
        even, flagged = received.variable, self.rule.apply(received, warn=False).variable
        uneven = even.max("key") - even.min("key") > 1e-6 * even.max("key")
        return flagged.sum("key") * uneven

    def plot(self, result: Result) -> Figure:
        labels = {"absorption": "anchors", "first": "position 0", "top": "strongest key"}
        share = "share of attention (dotted: null)"
        return lines(result, (share, labels, POSITIVE), ("anchors", "anchors", POSITIVE))
