"""Extreme tokens: whether anchors have small values, large residuals and high logits."""

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import ANY, Axes, Figure, band, lines
from ...stats.anchors import Rule, ZScore
from ...trace import Trace
from ..base import AnchorMeasure, by_layer, log_mean
from ..result import Result


@dataclass(frozen=True)
class ExtremeTokens(AnchorMeasure):
    """Value norm, residual norm and score of anchors against the other keys. Guo et al. 2410.13835.

    - `drain` = mean ‖W_O v‖ at anchors / median at the others; below 1 anchors have small values; null 1
    - `peak` = the same ratio of the residual norm at the layer's input; above 1 anchors have large
      residuals; null 1
    - `gap` = mean score at anchors − mean at the others, in q·k without the factor 1/√d; null 0
    - `found`: share of steps (and heads, for a rule per head) in which the rule found an anchor

    Values and scores belong to a head, so `rule` is ZScore(per_head=True) by default. Ratios are averaged
    over steps and heads in logarithms, so that ½ and 2 cancel.

    Args:
        fallback (bool): Where the rule finds no anchor, take the key that receives most attention (by
            default); False gives NaN there.
    """

    rule: Rule = field(default_factory=lambda: ZScore(per_head=True))
    fallback: bool = True
    beside: ClassVar[tuple[str, ...]] = ("value_norm", "residual_norm", "qk")
    layerwise: ClassVar[bool] = True
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"drain": "×", "peak": "×", "gap": "q·k", "found": "share"}
    nulls: ClassVar[dict[str, float]] = {"drain": 1.0, "peak": 1.0, "gap": 0.0}

    def compute(self, trace: Trace) -> xr.Dataset:
        values, residual, score = trace.value_norm, trace.residual_norm, trace.score
        anchor, has_anchor = self.anchors(trace, fallback=self.fallback)
        gap = score.where(anchor).mean("key") - score.where(~anchor).mean("key")
        return xr.Dataset(
            {
                "drain": _ratio(values, anchor),
                "peak": _ratio(residual, anchor),
                "gap": by_layer(gap),
                "found": by_layer(has_anchor.astype(float)),
            }
        )

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            partial(_draw_ratio, result=result, name="drain", label="value norm, ratio", series=0),
            partial(
                _draw_ratio, result=result, name="peak", label="residual norm, ratio", series=1
            ),
            ("score gap (q·k)", "gap", ANY),
            note=": anchors against the others (dotted: null)",
            width=2.5,
        )


def _ratio(norms: xr.DataArray, anchor: xr.DataArray) -> xr.Variable:
    """Divide the anchors' mean by the others' median, averaged in logarithms; NaN where a norm is 0."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN")  # every key an anchor: NaN, as it should be
        ratio = norms.where(anchor).mean("key") / norms.where(~anchor).median("key")
    return log_mean(ratio)


def _draw_ratio(axis: Axes, result: Result, name: str, label: str, series: int) -> None:
    """Draw a ratio over layers on a logarithmic axis with plain numbers; 1 is always in the range."""
    from matplotlib.ticker import NullLocator

    band(axis, result, name, "layer", series=series)
    axis.set_ylabel(label)
    values = np.concatenate([result.data[n].values for n in (name, f"{name}_low", f"{name}_high")])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = min([0.8, *values]) / 1.1, max([1.25, *values]) * 1.1
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    fine = (1, 2, 5) if high / low > 5 else (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)
    every = (1,) if high / low > 100 else fine
    ticks = [m * 10.0**e for e in range(-6, 7) for m in every if low <= m * 10.0**e <= high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.yaxis.set_minor_locator(NullLocator())
