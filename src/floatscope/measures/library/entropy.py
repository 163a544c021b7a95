"""Attention entropy: how widely rows spread their attention, by layer and by head.

The sampler `Entropy` is unrelated: it reveals positions by the entropy of their predictions.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from jaxtyping import Float

from ...plots import Figure, grid, lines
from ...trace import Trace
from ..base import Measure
from ..result import Result

ROWS = ("masked", "revealed", "prompt")


@dataclass(frozen=True)
class AttentionEntropy(Measure):
    """Mean ratio of row entropy to its maximum: 0 if all attention is on one key, 1 (the null) if uniform.

    The entropy of row i is −Σ_j A_ij ln A_ij, its maximum ln(number of keys that row i sees).

    - `entropy`: the ratio by layer, mean over steps, heads and rows
    - `by_head`: the ratio by layer and head
    - `masked`, `revealed`, `prompt`: the ratio by layer, mean over the rows of this kind; NaN without such
      rows

    The kind of a row is that of its position. With right-shifted logits the row that predicts position i is
    i − 1, so a row of the prompt makes the first prediction. Rows that see a single key are left out.
    """

    needs: ClassVar[tuple[str, ...]] = ("entropy_mean",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = dict.fromkeys(("entropy", "by_head", *ROWS), "of the maximum")
    nulls: ClassVar[dict[str, float]] = dict.fromkeys(units, 1.0)

    def compute(self, trace: Trace) -> xr.Dataset:
        total, count = entropy_totals(trace)
        with np.errstate(invalid="ignore"):
            by_kind = zip(ROWS, (total.sum(1) / count.sum(1)).T, strict=True)
            values: dict[str, Any] = {"entropy": ("layer", total.sum((1, 2)) / count.sum((1, 2)))}
            values |= {name: ("layer", value) for name, value in by_kind}
            values["by_head"] = ("layer", "head"), total.sum(2) / count.sum(2)
        return xr.Dataset(values)

    def plot(self, result: Result) -> Figure:
        label = "entropy / uniform"
        by_kind = (label, {name: name for name in ROWS}, (0, 1.05))
        by_head = partial(grid, values=result["by_head"], label=label, vmin=0, vmax=1)
        return lines(result, by_kind, by_head, note=": rows, by kind and by head (dotted: null)")


Totals = Float[np.ndarray, "layer head kind"]


def entropy_totals(trace: Trace) -> tuple[Totals, Totals]:
    """Return the sum of entropies over steps and the rows of each kind in ROWS, and the number of rows."""
    if "entropy" not in trace.data:
        sums = trace.entropy_sum.transpose("layer", "head", "group", "step")
        rows = trace.entropy_rows.transpose("layer", "group", "step")
        groups = [str(g) for g in trace.data["group"].values]
        # Groups are the kinds of row, or masked, revealed and the regions of the prompt.
        kind = [ROWS.index(g) if g in ROWS else ROWS.index("prompt") for g in groups]
        of_kind = np.eye(len(ROWS))[kind]  # (group, kind)
        total = sums.values.sum(-1, dtype=float) @ of_kind
        count = rows.values.sum(-1, dtype=float)[:, None] @ of_kind
        return total, np.broadcast_to(count, total.shape)
    answer, masked = trace.data["region"].values == "answer", trace.data["masked"].values
    kinds = (answer & masked, answer & ~masked, np.broadcast_to(~answer, masked.shape))
    of_kind = np.stack(kinds, -1).astype(np.float32)  # (step, query, kind)
    totals = []
    for values in trace.entropy.transpose("layer", "step", "head", "query").values:
        counted = (~np.isnan(values)).astype(np.float32)
        totals.append([(x @ of_kind).sum(0) for x in (np.nan_to_num(values), counted)])
    total, count = np.moveaxis(np.array(totals, float), 1, 0)  # (layer, head, kind)
    return total, count
