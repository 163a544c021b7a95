"""What figures of measures share: a value along a dimension with its interval, null and control.

How a figure looks and how large it is stands in `trace/drawing.py`, for heat maps of a trace too; its names
are here as well, for whoever draws a measure.
"""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..trace.drawing import (
    ABOVE,
    COLOURS,
    LIFT_MAP,
    LINES,
    MARKERS,
    SHARE_MAP,
    STYLE,
    Axes,
    Figure,
    asked,
    headline,
    legend,
    panels,
    points,
    save,
    style,
)

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "ABOVE",
    "COLOURS",
    "LIFT_MAP",
    "LINES",
    "MARKERS",
    "SHARE_MAP",
    "STYLE",
    "UNTRAINED",
    "Axes",
    "Figure",
    "Labelled",
    "asked",
    "band",
    "headline",
    "legend",
    "panels",
    "points",
    "save",
    "style",
]

UNTRAINED = "untrained"  # what a figure calls the control


@runtime_checkable
class Labelled(Protocol):
    """A Result, or anything with values and their `_low`, `_high`, `_null` in a dataset."""

    data: "xr.Dataset"


def band(
    axis: Axes,
    result: Labelled,
    name: str,
    along: str,
    *,
    series: int = 0,
    label: str | None = None,
) -> None:
    """A value along a dimension with its interval as a band and its null as a thin dotted line.

    Where the result has a control, its mean is drawn lightly; the first on an axis is named.
    """
    from matplotlib.ticker import MaxNLocator

    x, data = result.data[along].values, result.data
    colour, line = COLOURS[series % len(COLOURS)], LINES[series % len(LINES)]
    axis.plot(x, data[name].values, color=colour, linestyle=line, label=label or name)
    low, high = data[f"{name}_low"].values, data[f"{name}_high"].values
    axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    if f"{name}_null" in data:
        null = data[f"{name}_null"].broadcast_like(data[name]).values
        axis.plot(x, null, color=colour, linestyle=":", linewidth=0.8)
    control = getattr(result, "control", None)
    if control is not None and name in control.data:
        named = UNTRAINED in axis.get_legend_handles_labels()[1]
        at, mean = control.data[along].values, control.data[name].values
        light: Any = {"linewidth": 0.7, "marker": "x", "markersize": 3, "alpha": 0.55}
        axis.plot(at, mean, color=colour, label=None if named else UNTRAINED, **light)
    axis.set_xlabel(along)
    ticks: Any = axis.xaxis.get_major_locator()
    if along in ("layer", "step") and isinstance(ticks, MaxNLocator):
        ticks.set_params(integer=True)
