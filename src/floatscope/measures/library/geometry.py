"""Geometry: whether anchors win by angle or by norm, layer by layer."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from ...plots import ANY, Figure, lines
from ...stats.anchors import Rule, ZScore
from ...trace import Trace
from ..base import AnchorMeasure, by_layer
from ..result import Result

_FLAT = 1e-6  # a smaller spread, relative to the largest value, is rounding error
_CANCEL = 0.5  # below this ratio of sum to sizes, parts cancel and have no share


@dataclass(frozen=True)
class Geometry(AnchorMeasure):
    """Differences of anchors and other keys in score, cosine and norms, and the parts of their advantage.

    According to Attention Floating (2601.07894), anchors in shallow layers win by angle and norm, and anchors
    in deep layers by angle. All values are computed within a head and averaged over steps and heads, so
    `rule` is ZScore(per_head=True) by default. In the formulas, n is ‖q‖·‖k‖, c is the cosine, the index a is
    the mean over anchors, and the index o is the mean over the other keys:

    - `score`, `cosine`, `norms`: (a − o) / standard deviation over keys; null 0
    - `angle` = ½(c_a − c_o)(n_a + n_o) and `norm` = ½(n_a − n_o)(c_a + c_o), which add up to n_a·c_a −
      n_o·c_o
    - `remainder` = score_a − score_o − angle − norm: the part that the means do not explain
    - `angle_share` = angle / (angle + norm); above 1 if the norm works against the anchor. NaN if the sum is
      not positive, or if the two parts cancel by more than half, so the share lies between −½ and 1½
    - `key_rank`: share of the other keys whose norm is smaller than the anchor's (ties count half); null ½
    - `found`: share of steps (and heads, for a rule per head) in which the rule found an anchor

    Args:
        fallback (bool): Whether the key that receives most attention is used where the rule finds no anchor
            (True, by default), or the values are NaN there (False).
    """

    rule: Rule = field(default_factory=lambda: ZScore(per_head=True))
    fallback: bool = True
    extra_statistics: ClassVar[tuple[str, ...]] = ("qk",)
    layerwise: ClassVar[bool] = True
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("score", "cosine", "norms"), "standard deviations"),
        **dict.fromkeys(("angle", "norm", "remainder"), "q·k"),
        "angle_share": "part of the advantage",
        "key_rank": "share of keys",
        "found": "share",
    }
    nulls: ClassVar[dict[str, float]] = {
        **dict.fromkeys(("score", "cosine", "norms", "angle", "norm"), 0.0),
        "key_rank": 0.5,
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        # Variables without labels, because every operation would align labelled arrays again.
        score, cosine = trace.score.variable, trace.cosine.variable
        key_norm, norms = trace.key_norm.variable, (trace.query_norm * trace.key_norm).variable
        anchor, has_anchor = (x.variable for x in self.anchors(trace, fallback=self.fallback))

        def means(values: xr.Variable) -> tuple[xr.Variable, xr.Variable]:
            return values.where(anchor).mean("key"), values.where(~anchor).mean("key")

        (s_a, s_o), (c_a, c_o), (n_a, n_o) = means(score), means(cosine), means(norms)
        angle, norm = (c_a - c_o) * (n_a + n_o) / 2, (n_a - n_o) * (c_a + c_o) / 2
        parts = {
            "score": (s_a - s_o) / _spread(score, s_a - s_o),
            "cosine": (c_a - c_o) / _spread(cosine, c_a - c_o),
            "norms": (n_a - n_o) / _spread(norms, n_a - n_o),
            "angle": angle,
            "norm": norm,
            "remainder": s_a - s_o - angle - norm,
            "key_rank": _rank(key_norm).where(anchor).mean("key"),
            "found": has_anchor.astype(float),
        }
        values = {name: by_layer(part) for name, part in parts.items()}
        total = values["angle"] + values["norm"]
        clear = total > _CANCEL * (abs(values["angle"]) + abs(values["norm"]))
        return xr.Dataset({**values, "angle_share": (values["angle"] / total).where(clear)})

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("anchors − rest (std. dev.)", {n: n for n in ("score", "cosine", "norms")}, ANY),
            ("part of the advantage (q·k)", {n: n for n in ("angle", "norm", "remainder")}, ANY),
            ("share", {"angle_share": "angle share", "key_rank": "key norm rank"}, ANY),
            width=2.9,
        )


def _spread(values: xr.Variable, difference: xr.Variable) -> xr.Variable:
    """Return the population standard deviation over keys; infinite if all values are equal.

    Dividing a difference by an infinite spread gives 0.
    """
    spread = values.std("key", ddof=0)
    flat = spread <= _FLAT * abs(values).max("key")
    return spread.where(~flat, np.inf).where(difference.notnull())


def _rank(values: xr.Variable) -> xr.Variable:
    """Return, for each key, the share of other keys with a smaller value; ties count half."""
    dims = [d for d in values.dims if d != "key"]
    flat = values.transpose("key", *dims)
    table = pd.DataFrame(flat.values.reshape(flat.sizes["key"], -1))
    rank = (table.rank() - 1) / (table.notna().sum() - 1)
    return flat.copy(data=rank.to_numpy().reshape(flat.shape)).transpose(*values.dims)
