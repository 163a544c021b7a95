"""Region flow: which regions the answer attends to, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr

from ...errors import UsageError
from ...plots import Axes, Figure, band, grid, lines
from ...trace import Trace
from ...trace.windows import is_local
from .. import regions
from ..base import Measure
from ..nulls import flow_null, names, row_null, tokens
from ..result import Result

_ROWS = {
    "reveal": "the row that predicted each token of the answer, at the step that revealed it",
    "answer": "all rows at answer positions, at every step that has any",
}


@dataclass(frozen=True)
class RegionFlow(Measure):
    """Attention from the answer to each category of region, and the lift of the gold passage.

    Defined in Attention Floating (2601.07894), §5. The values are by layer:

    - `flow`: share of attention on each category of region
    - `gold_lift` = (mass per gold token) / (mass per token over all passages); null 1; NaN without a gold
      region or with a single passage
    - `passage`: share of attention on each passage, by the place of the passage; left out if prompts differ
      in their number of passages

    Args:
        rows (str): Which rows of the answer to read. "reveal" (by default): the row that predicted each
            token, at the step that revealed the token (in a causal model, the row of the previous position).
            This estimator is the same for causal and diffusion models; positions after the end token do not
            count. "answer": all rows at answer positions of `source`, at every step. In a causal model, these
            are the rows of the tokens generated so far; at step 0 there are none.
        source (tuple of str): Regions whose rows count with rows="answer"; ("masked", "revealed") by
            default.
    """

    rows: str = "reveal"
    source: tuple[str, ...] = ("masked", "revealed")
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"flow": "share", "gold_lift": "×", "passage": "share"}

    def __post_init__(self) -> None:
        if self.rows not in _ROWS:
            raise UsageError(f"rows = {self.rows!r}", "Use 'reveal' or 'answer'.")
        if not self.source:
            raise UsageError("no source", "Name regions, such as ('masked', 'revealed').")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("rows",) if self.rows == "reveal" else ("flow",)

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Combine the examples; drop `passage` if the prompts differ in their number of passages."""
        result = super().summarise(examples, model)
        result.data.attrs["rows"] = _ROWS[self.rows]
        counts = sorted({example.sizes.get("place", 0) for example in examples})
        if counts != [counts[0]] or counts == [0]:  # places of passages do not correspond
            result.values.remove("passage")
            result.data = result.data.drop_dims("place")
            result.data.attrs["passage"] = f"left out: the traces contain {counts} passages"
        return result

    def compute(self, trace: Trace) -> xr.Dataset:
        flow, null = self._reveal(trace) if self.rows == "reveal" else self._answer(trace)
        places = [name for name in names(trace) if name.startswith("passage ")]
        gold = regions.gold_of(trace)
        # Regions of a prompt never change; masked and revealed are not divided by their length.
        size = xr.DataArray(tokens(trace)[0], {"target": names(trace)}).sel(target=places)

        def gold_lift(array: xr.DataArray) -> xr.DataArray:
            by_passage = array.sel(target=places)
            over_all = by_passage.sum("target") / size.sum("target")
            return (by_passage / size).sel(target=gold, drop=True) / over_all

        has_gold = gold in places and len(places) > 1
        lift = gold_lift(flow) if has_gold else flow.isel(target=0, drop=True) * np.nan
        lift_null = 1 + 0 * lift
        if is_local(trace.data) and has_gold:  # rows with a window see more of some passages
            lift_null = lift_null * gold_lift(null)

        def placed(array: xr.DataArray) -> xr.DataArray:
            by_place = array.sel(target=places).rename(target="place")
            return by_place.assign_coords(place=np.arange(1, len(places) + 1))

        values = {
            "flow": regions.by_category(flow, trace),
            "flow_null": regions.by_category(null, trace),
            "gold_lift": lift,
            "gold_lift_null": lift_null,
            "passage": placed(flow),
            "passage_null": placed(null),
        }
        by_layer = {name: value.transpose("layer", ...) for name, value in values.items()}
        return xr.Dataset(by_layer, attrs={"gold": gold is not None})

    def _reveal(self, trace: Trace) -> tuple[xr.DataArray, xr.DataArray]:
        counted = regions.written(trace)
        flow = trace.rows["row_flow"].mean("head").isel(event=counted)
        null = row_null(trace).isel(event=counted) + 0 * flow.isel(target=0, drop=True)
        return flow.mean("event"), null.mean("event")

    def _answer(self, trace: Trace) -> tuple[xr.DataArray, xr.DataArray]:
        flow, null = trace.flow.mean("head"), flow_null(trace)
        arrays = (flow, null.broadcast_like(flow))
        flow, null = (regions.from_sources(array, trace, self.source) for array in arrays)
        return flow, null

    def plot(self, result: Result) -> Figure:
        def draw_shares(axis: Axes) -> None:
            regions.draw_categories(axis, result, "flow", "answer → region (dotted: null)")

        def draw_lift(axis: Axes) -> None:
            band(axis, result, "gold_lift", "layer", label="gold")
            axis.set_title("per gold token / per token of all passages")
            axis.set_ylabel("gold lift (dotted: null)")
            axis.set_ylim(bottom=0)

        def draw_passages(axis: Axes) -> None:
            lift = result["passage_lift"]
            top = max(2.0, float(np.nanquantile(lift, 0.98)), 1 / max(float(lift.min()), 0.05))
            grid(axis, lift, "lift over uniform attention", y="place", span=top)
            axis.set(title="answer → passage, by place", ylabel="passage", yticks=lift["place"])

        drawn = [draw_shares]  # with one passage, there is nothing to compare it with
        drawn += [draw_lift] if result["gold_lift"].notnull().any() else []
        several = "passage" in result.values and result.data.sizes["place"] > 1
        drawn += [draw_passages] if several else []
        return lines(result, *drawn, note=f", {self.rows} rows")
