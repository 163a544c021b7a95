"""Rollout: attention followed through all layers, compared with the rollout of uniform attention.

The measure is Abnar and Zuidema's rollout (2005.00928) with regions instead of an S×S matrix. Most of a
rollout is equal to its null: causal rollouts converge to the first position, and bidirectional rollouts to
the share of each region in the length.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import Axes, Figure, lines
from ...trace import Trace
from ..base import Measure
from ..nulls import rollout_null
from ..regions import by_category, draw_categories, from_sources, gold_of
from ..result import Result


@dataclass(frozen=True)
class Rollout(Measure):
    """Rollout R_l = ½(Ā_l + I)R_{l−1} from the rows of the answer to each category of region.

    Ā_l is the attention of layer l averaged over heads; R_0 assigns each position to its region.

    - `rollout`: the rollout by layer, mean over the rows of `source` at every step with such rows (the first
      step of a causal model has no such rows)
    - `last`: the same mean in the last kept layer
    - `distinctness`: total variation between the rows of different source regions, mean over pairs of
      regions. The value is 0 if the rollouts of all source regions are equal, so that the rollout does not
      distinguish the regions

    The null is the same recursion with uniform attention over the visible keys.

    Args:
        source (tuple of str): Regions whose rows count; ("masked", "revealed") by default.
    """

    source: tuple[str, ...] = ("masked", "revealed")
    needs: ClassVar[tuple[str, ...]] = ("rollout",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("rollout", "last"), "share"),
        "distinctness": "total variation",
    }

    def compute(self, trace: Trace) -> xr.Dataset:
        values: dict[str, xr.DataArray] = {}
        for end, array in (("", trace.rollout), ("_null", rollout_null(trace))):
            answer = by_category(from_sources(array, trace, self.source), trace)
            answer = answer.transpose("layer", "category")
            values |= {
                f"rollout{end}": answer,
                f"last{end}": answer.isel(layer=-1, drop=True),
                f"distinctness{end}": distinctness(array).mean("step"),
            }
        return xr.Dataset(values, attrs={"gold": gold_of(trace) is not None})

    def plot(self, result: Result) -> Figure:
        def draw_shares(axis: Axes) -> None:
            alone = result.data.drop_vars("rollout_null")  # drawn in its own panel
            label = "rollout from the answer"
            draw_categories(axis, replace(result, data=alone), "rollout", label)

        def draw_null(axis: Axes) -> None:
            draw_categories(axis, result, "rollout_null", "its null: uniform attention")

        between = "distinctness (dotted: null)"
        return lines(result, draw_shares, draw_null, (between, "distinctness", (0, 1)))


def distinctness(rolled: xr.DataArray) -> xr.DataArray:
    """Return the total variation between the rollouts of two source regions, as a mean over all pairs.

    Source regions without rows are left out. The result lies between 0 and 1.
    """
    other = rolled.rename(source="other")
    distance = abs(rolled - other).sum("target", skipna=False) / 2
    several = rolled.sizes["source"]
    pair = xr.DataArray(np.triu(np.ones((several, several), bool), 1), dims=("source", "other"))
    plain = distance.drop_vars(["source", "other"], errors="ignore")
    return plain.where(pair).mean(["source", "other"])
