"""Rollout: attention followed through all layers, compared with the rollout of uniform attention.

Abnar and Zuidema's rollout (2005.00928) with regions instead of an S×S matrix. Most of a rollout is its
null: causal rollouts drift to the first position, bidirectional ones to the regions' shares of the length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import Axes, Figure, band, lines
from ...trace import Trace
from ..base import Measure
from ..nulls import rollout_null
from ..regions import by_category, draw_categories, from_sources, gold_of, stated
from ..result import Result


@dataclass(frozen=True)
class Rollout(Measure):
    """Rollout R_l = ½(Ā_l + I)R_{l−1} from the answer's rows to each category of region, and between regions.

    - `rollout`: by layer, mean over the rows of `source` at every step that has such rows (the first step of
      a causal model has none)
    - `last`: the same in the last kept layer
    - `distinctness`: total variation between the rows of different source regions, mean over pairs of
      regions. At 0 all regions read the same mixture, and the rollout does not show where a region looks

    Null: uniform attention over the visible keys in the same recursion.

    Args:
        source (tuple of str): Regions whose rows count; ("masked", "revealed") by default.
    """

    source: tuple[str, ...] = ("masked", "revealed")
    needs: ClassVar[tuple[str, ...]] = ("rollout",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {
        "rollout": "share",
        "last": "share",
        "distinctness": "total variation",
    }

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Combine the examples, and note how many name a gold region."""
        result = super().summarise(examples, model)
        result.data.attrs["gold"] = stated(examples)
        return result

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
            alone = result.data.drop_vars("rollout_null")  # which has a panel of its own
            draw_categories(axis, replace(result, data=alone), "rollout")
            axis.set_ylabel("rollout from the answer")

        def draw_null(axis: Axes) -> None:
            draw_categories(axis, result, "rollout_null")
            axis.set_ylabel("its null: uniform attention")

        def draw_distinctness(axis: Axes) -> None:
            band(axis, result, "distinctness", "layer")
            axis.set_title("between source regions (dotted: null)")
            axis.set(ylabel="total variation", ylim=(0, 1))

        return lines(result, draw_shares, draw_null, draw_distinctness)


def distinctness(rolled: xr.DataArray) -> xr.DataArray:
    """Compute ½Σ|r_s − r_s'| over targets, mean over all pairs of regions that have rows: 0 … 1."""
    other = rolled.rename(source="other")
    apart = abs(rolled - other).sum("target", skipna=False) / 2
    several = rolled.sizes["source"]
    pair = xr.DataArray(np.triu(np.ones((several, several), bool), 1), dims=("source", "other"))
    plain = apart.drop_vars(["source", "other"], errors="ignore")
    return plain.where(pair).mean(["source", "other"])
