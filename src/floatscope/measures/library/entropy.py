"""Attention entropy: how widely rows look, layer by layer and head by head.

A row's entropy over that of a uniform row. It is not the sampler called Entropy, which orders
reveals by the entropy of predictions; and a low value does not say where a row looks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...trace import Trace
from ..base import Measure
from ..result import Result
from ..style import ABOVE, Figure, bands, grid, headline, panels

ROWS = ("masked", "revealed", "prompt")


@dataclass(frozen=True)
class AttentionEntropy(Measure):
    """Mean of −Σ_j A_ij ln A_ij / ln(keys that i sees): 0 is one key, 1 (the null) is uniform.

    - `entropy`: by layer, the mean over steps, heads and rows
    - `by_head`: by layer and head
    - `masked`, `revealed`, `prompt`: by layer, from those rows alone; NaN where there are none

    A row is named after its own position. With right-shifted logits the row that predicts position
    i is i − 1: the first prediction is then made by a prompt row. Rows that see one key are left out.
    """

    needs: ClassVar[tuple[str, ...]] = ("entropy",)
    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = dict.fromkeys(("entropy", "by_head", *ROWS), "of the maximum")

    def compute(self, trace: Trace) -> xr.Dataset:
        entropy = trace.entropy.transpose("layer", "step", "head", "query")
        answer, masked = trace.data["region"].values == "answer", trace.data["masked"].values
        kinds = (answer & masked, answer & ~masked, np.broadcast_to(~answer, masked.shape))
        of_kind = np.stack(kinds, -1).astype(np.float32)  # (step, query, kind)
        total, count = np.zeros((2, *entropy.shape[:3:2], len(ROWS)))  # (layer, head, kind)
        for layer, rows in enumerate(entropy.values):
            there = ~np.isnan(rows)  # (step, head, query)
            total[layer] = (np.where(there, rows, 0) @ of_kind).sum(0)
            count[layer] = (there.astype(np.float32) @ of_kind).sum(0)
        with np.errstate(invalid="ignore"):
            by_kind = dict(zip(ROWS, (total.sum(1) / count.sum(1)).T, strict=True))
            by_kind = {"entropy": total.sum((1, 2)) / count.sum((1, 2)), **by_kind}
            values: dict[str, Any] = {name: ("layer", value) for name, value in by_kind.items()}
            values["by_head"] = ("layer", "head"), total.sum(2) / count.sum(2)
        nulls = {f"{name}_null": (dims, np.ones_like(v)) for name, (dims, v) in values.items()}
        coords = {d: entropy[d].values for d in ("layer", "head")}
        return xr.Dataset({**values, **nulls}, coords)

    def plot(self, result: Result) -> Figure:
        with panels(1, 2) as (figure, axes):
            lines, heads = axes[0]
            bands(lines, result, {name: name for name in ROWS})
            lines.set_ylim(0, 1.05)
            lines.set_ylabel("entropy / uniform")
            lines.legend(ncols=2, **ABOVE)
            grid(heads, result["by_head"], "entropy / uniform", vmin=0, vmax=1)
            headline(
                figure, f"{result.model}, n = {result.n}: rows, by kind and by head (dotted: null)"
            )
        return figure
