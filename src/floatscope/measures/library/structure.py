"""Structure and content: which classes of token receive attention, and how this changes with depth.

The measure does not separate the effect of a class from the effect of its positions: a sink at position 0
counts as structure because `<bos>` is structural.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ...plots import LIFT_MAP, Axes, Figure, band, legend_above, lines, log_scale, points
from ...sequences.token_classes import STRUCTURAL
from ...trace import Trace
from ..base import Measure
from ..result import Result

SHOWN = ("special", "mask", "whitespace", "punctuation", "template", "function", "content")
_NUMBERS = 16  # up to this number of layers, cells show their value


@dataclass(frozen=True)
class Structure(Measure):
    """Lift by token class and layer, the structure index, and its trend over depth.

    - `class_mass`: share of attention on the class; null: the same share under uniform attention
    - `class_lift` = class mass / its null, both summed over steps first; null 1
    - `index` = lift of structural tokens / lift of content tokens; null 1. The structural classes are
      special, whitespace, punctuation, template and function. Masks are neither structure nor content: they
      have a lift but do not enter the index
    - `trend` = slope of ln(index) against relative depth (0 at the first layer, 1 at the last); null 0.
      exp(trend) is the factor from the first to the last layer

    A class without tokens is NaN.

    Args:
        skip (int): Number of keys to leave out at the start; 0 by default. `Structure(skip=1)` leaves out
            position 0, where a fixed sink would look like attention to structure.
    """

    skip: int = 0
    needs: ClassVar[tuple[str, ...]] = ("head_mean",)
    units: ClassVar[dict[str, str]] = {
        "class_mass": "share",
        **dict.fromkeys(("class_lift", "index"), "×"),
        "trend": "ln × per depth",
    }
    nulls: ClassVar[dict[str, float]] = {"class_lift": 1.0, "index": 1.0, "trend": 0.0}

    def compute(self, trace: Trace) -> xr.Dataset:
        mass = np.nan_to_num(trace.mean_mass.transpose("step", "layer", "key").values)
        kind = trace.data["token_class"].transpose("step", "key").values.copy()
        kind[:, : self.skip] = "skipped"
        inside = (kind[..., None] == np.array(SHOWN)).astype(float)  # (step, key, class)
        present = np.asarray(inside.any(axis=(0, 1)))
        received = (mass @ inside).sum(0).T / len(kind)  # (class, layer)
        expected = np.einsum("tk,tkc->c", trace.null.fillna(0).values.astype(float), inside) / len(
            kind
        )
        received, expected = (
            np.where(present[:, None], received, np.nan),
            np.where(present, expected, np.nan),
        )
        structural = np.isin(SHOWN, STRUCTURAL) & present
        content = SHOWN.index("content")
        depth = trace.data["layer"].values.astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            structural_lift = received[structural].sum(0) / expected[structural].sum()
            index = structural_lift / (received[content] / expected[content])
        class_dims = ("token_class", "layer")
        values: dict[str, Any] = {
            "class_mass": (class_dims, received),
            "class_mass_null": (class_dims, np.broadcast_to(expected[:, None], received.shape)),
            "class_lift": (class_dims, received / expected[:, None]),
            "index": ("layer", index),
            "trend": _slope(depth, index),
        }
        return xr.Dataset(values, {"token_class": np.array(SHOWN)})

    def plot(self, result: Result) -> Figure:
        def draw_index(axis: Axes) -> None:
            band(axis, result, "index", "layer", label="trained")
            if result.control is not None:
                legend_above(axis)
            log_scale(axis)
            axis.set_ylabel("structural / content lift")

        trend, low, high = (float(result.data[f"trend{x}"]) for x in ("", "_low", "_high"))
        interval = "" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]"
        note = f"; slope of ln(index) over depth: {trend:.3f}{interval}"
        return lines(result, partial(_draw_lifts, result=result), draw_index, note=note, width=3.6)


def _draw_lifts(axis: Axes, result: Result) -> None:
    """Draw a map of classes × layers, with the lift as colour and number; with many layers, + above 1."""
    shown = result.data["class_lift"].dropna("token_class", how="all").transpose("token_class", ...)
    values, layers = shown.values, shown["layer"].values
    with np.errstate(divide="ignore"):
        logs = np.log2(values)
    axis.imshow(logs, cmap=LIFT_MAP, vmin=-4, vmax=4, aspect="auto", interpolation="nearest")
    numbers = len(layers) <= _NUMBERS
    for (row, column), value in np.ndenumerate(values):
        text = (f"{value:.0f}" if value >= 9.95 else f"{value:.1f}") if numbers else "+"
        if np.isfinite(value) and (numbers or value > 1):
            dark = abs(logs[row, column]) > 2.6
            colour = "white" if dark else "black"
            axis.text(column, row, text, ha="center", va="center", fontsize=points(6), color=colour)
    axis.set_yticks(range(len(values)), [str(c) for c in shown["token_class"].values])
    stride = max(1, len(layers) // 8)
    axis.set_xticks(range(0, len(layers), stride), [str(x) for x in layers[::stride]])
    axis.set(xlabel="layer", title="lift by class (1 = chance)")


def _slope(depth: np.ndarray, index: np.ndarray) -> float:
    """Fit the slope of ln(index) over relative depth; NaN with fewer than two layers that have an index."""
    good = np.isfinite(index) & (index > 0)
    if good.sum() < 2:
        return np.nan
    x = (depth - depth.min()) / (depth.max() - depth.min())
    return float(np.polyfit(x[good], np.log(index[good]), 1)[0])
