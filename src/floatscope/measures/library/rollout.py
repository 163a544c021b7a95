"""Rollout: attention followed through all layers, and what it would show of nothing.

Abnar and Zuidema's rollout (2005.00928) with regions instead of an S×S matrix. It ignores values,
MLPs and what heads do differently, and most of what it shows is its null: causal rollouts drift to
the first position, bidirectional ones to the regions' shares of the length, whatever the model does.
So it is never given here without that null.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...plots import ABOVE, COLOURS, LINES, Figure, band, headline, panels, points
from ...trace import Trace
from ..base import Measure
from ..nulls import rollout_null
from ..regions import CATEGORIES, SERIES, by_category, from_sources, gold_of, stated
from ..result import Result


@dataclass(frozen=True)
class Rollout(Measure):
    """R_l = ½(Ā_l + I)R_{l−1} from the answer's rows to each category, and between regions.

    `rollout` by layer and `last`, its last kept layer: a mean over the rows of `source` at every step
    that has any (a causal model's first step has none). The null pushes uniform attention over the
    visible keys through the same recursion. `distinctness`: how different the rows of different
    source regions are: total variation, mean over pairs of regions. At 0 every region reads the same
    mixture, and the rollout says nothing of where a region looks.
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
        with panels(1, 3) as (figure, axes):
            measured, nothing, apart = axes[0]
            layers = result["layer"].values
            shown = [c for c in CATEGORIES if result["rollout"].sel(category=c).notnull().any()]
            for i, category in zip(SERIES, shown, strict=False):
                part = result.data.sel(category=category).drop_vars("rollout_null")
                own = Result(part, self, result.examples)
                band(measured, own, "rollout", "layer", series=i, label=category)
                colour, line = COLOURS[i % len(COLOURS)], LINES[i % len(LINES)]
                null = result["rollout_null"].sel(category=category)
                nothing.plot(layers, null, color=colour, linestyle=line, label=category)
            for axis in (measured, nothing):
                axis.legend(ncols=2, fontsize=points(7), **ABOVE)
            nothing.set_xlabel("layer")
            measured.set_ylabel("rollout from the answer")
            nothing.set_ylabel("its null: uniform attention")
            for axis in (measured, nothing):
                axis.set_ylim(0, 1)
            band(apart, result, "distinctness", "layer")
            apart.set_title("between source regions (dotted: null)")
            apart.set_ylabel("total variation")
            apart.set_ylim(0, 1)
            headline(figure, f"{result.model}, n = {result.n}")
        return figure


def distinctness(rolled: xr.DataArray) -> xr.DataArray:
    """½Σ|r_s − r_s'| over targets, mean over all pairs of regions that have rows: 0 … 1."""
    other = rolled.rename(source="other")
    apart = abs(rolled - other).sum("target", skipna=False) / 2
    several = rolled.sizes["source"]
    pair = xr.DataArray(np.triu(np.ones((several, several), bool), 1), dims=("source", "other"))
    plain = apart.drop_vars(["source", "other"], errors="ignore")
    return plain.where(pair).mean(["source", "other"])
