"""Extreme tokens: whether anchors have small values, large residuals and high logits."""

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import xarray as xr

from ...plots import ANY, LOG, Figure, lines
from ...stats.anchors import Rule, ZScore
from ...trace import Trace
from ..base import AnchorMeasure, by_layer, log_mean
from ..result import Result


@dataclass(frozen=True)
class ExtremeTokens(AnchorMeasure):
    """Value norm, residual norm and score of anchors against the other keys. Guo et al. 2410.13835.

    - `drain` = mean ‖W_O v‖ at anchors / median ‖W_O v‖ at other keys; below 1, anchors have small values;
      null 1
    - `peak` = the same ratio of the residual norm at the layer's input; above 1, anchors have large
      residuals; null 1
    - `gap` = mean score at anchors − mean score at other keys; a score is q·k without the factor 1/√d; null 0
    - `found`: share of steps (and heads, for a rule per head) in which the rule found an anchor

    Values and scores belong to a head, so `rule` is ZScore(per_head=True) by default. Ratios are averaged
    over steps and heads in logarithms, so that ½ and 2 cancel.

    Args:
        fallback (bool): Whether the key that receives most attention is used where the rule finds no anchor
            (True, by default), or the values are NaN there (False).
    """

    rule: Rule = field(default_factory=lambda: ZScore(per_head=True))
    fallback: bool = True
    extra_statistics: ClassVar[tuple[str, ...]] = ("value_norm", "residual_norm", "qk")
    layerwise: ClassVar[bool] = True
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"drain": "×", "peak": "×", "gap": "q·k", "found": "share"}
    nulls: ClassVar[dict[str, float]] = {"drain": 1.0, "peak": 1.0, "gap": 0.0}

    def compute(self, trace: Trace) -> xr.Dataset:
        values, residual, score = trace.value_norm, trace.residual_norm, trace.score
        anchor, has_anchor = self.anchors(trace, fallback=self.fallback)
        gap = score.where(anchor).mean("key") - score.where(~anchor).mean("key")
        marks = {
            "drain": _ratio(values, anchor),
            "peak": _ratio(residual, anchor),
            "gap": by_layer(gap),
            "found": by_layer(has_anchor.astype(float)),
        }
        return xr.Dataset(marks)

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("value norm, ratio", "drain", LOG),
            ("residual norm, ratio", "peak", LOG),
            ("score gap (q·k)", "gap", ANY),
            note=": anchors against the others (dotted: null)",
            width=2.5,
        )


def _ratio(norms: xr.DataArray, anchor: xr.DataArray) -> xr.Variable:
    """Return the mean norm of anchors over the median norm of other keys, as a geometric mean per layer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN")  # NaN, correctly, if every key is an anchor
        ratio = norms.where(anchor).mean("key") / norms.where(~anchor).median("key")
    return log_mean(ratio)
