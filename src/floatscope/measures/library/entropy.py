"""Attention entropy: how widely rows look, layer by layer and head by head.

A row's entropy over that of a uniform row. It is not the sampler called Entropy, which orders
reveals by the entropy of predictions; and a low value does not say where a row looks.
"""

from dataclasses import dataclass
from typing import ClassVar

import xarray as xr

from ...trace import Trace
from ..base import Measure
from ..contrast import by_layer
from ..result import Result
from ..style import ABOVE, SHARE_MAP, Figure, band, headline, panels

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

    windows: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = dict.fromkeys(("entropy", "by_head", *ROWS), "of the maximum")

    def compute(self, trace: Trace) -> xr.Dataset:
        entropy = trace.entropy
        answer = _of_queries(trace.data["region"] == "answer")
        masked = _of_queries(trace.data["masked"])
        which = {"masked": answer & masked, "revealed": answer & ~masked, "prompt": ~answer}
        values = {
            "entropy": by_layer(entropy),
            "by_head": by_layer(entropy, keep=("layer", "head")),
            **{name: by_layer(entropy.where(rows)) for name, rows in which.items()},
        }
        nulls = {f"{name}_null": xr.ones_like(value) for name, value in values.items()}
        return xr.Dataset({**values, **nulls})

    def plot(self, result: Result) -> Figure:
        with panels(1, 2) as (figure, axes):
            lines, heads = axes[0]
            for i, name in enumerate(ROWS):
                if result.data[name].notnull().any():
                    band(lines, result, name, "layer", series=i, label=name)
            lines.set_ylim(0, 1.05)
            lines.set_ylabel("entropy / uniform")
            lines.legend(ncols=2, **ABOVE)
            lines.xaxis.get_major_locator().set_params(integer=True)
            grid = result.data["by_head"].transpose("head", "layer")
            layer, head = grid["layer"].values, grid["head"].values
            drawn = heads.pcolormesh(layer, head, grid.values, vmin=0, vmax=1, cmap=SHARE_MAP)
            heads.set_xlabel("layer")
            heads.set_ylabel("head")
            for axis in (heads.xaxis, heads.yaxis):
                axis.get_major_locator().set_params(integer=True)
            figure.colorbar(drawn, ax=heads, label="entropy / uniform")
            headline(
                figure, f"{result.model}, n = {result.n}: rows, by kind and by head (dotted: null)"
            )
        return figure


def _of_queries(flags: xr.DataArray) -> xr.DataArray:
    """A flag of positions, as keys, read as a flag of the same positions as queries."""
    loose = [c for c in flags.coords if c not in flags.dims or c == "key"]
    return flags.drop_vars(loose).rename(key="query")
