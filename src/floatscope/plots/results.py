"""Parts of the figures of measures: values with interval and null, maps, and a default figure."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from .drawing import (
    COLOURS,
    LIFT_MAP,
    LINES,
    SHARE_MAP,
    Axes,
    Figure,
    headline,
    legend_above,
    lift_ticks,
    panels,
)

if TYPE_CHECKING:
    import xarray as xr

UNTRAINED = "untrained"  # what a figure calls the control
_ACROSS = 3  # panels side by side in the plain figure
Limits = tuple[float | None, ...] | str  # of a y axis
Panel = Callable[[Axes], Any] | tuple[str, str | Mapping[str, str], Limits]
SHARE, POSITIVE, ANY, LOG = (-0.03, 1.03), (0, None), (None, None), "log"
_ORDER = ("layer", "head", "step", "key")  # which dimensions a plain panel keeps, the first first


@runtime_checkable
class Labelled(Protocol):
    """A `Result`, or another object with a dataset of values `x` and their `x_low`, `x_high` and `x_null`."""

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
    """Draw a value along a dimension, with its interval as a band and its null as a thin dotted line.

    If the result has a control, the control's mean is drawn lightly; the first control in a panel is named in
    the legend.

    Args:
        axis (Axes): The panel.
        result (Result): The result, or any object with a dataset `data`.
        name (str): Name of the value.
        along (str): Name of the dimension, such as "layer".
        series (int): Index of the colour and the line style; 0 by default.
        label (str): Text in the legend; by default the value's name.
    """
    x, data = result.data[along].values, result.data
    colour, line = COLOURS[series % len(COLOURS)], LINES[series % len(LINES)]
    axis.plot(x, data[name].values, color=colour, linestyle=line, label=label or name)
    if f"{name}_low" in data:
        low, high = data[f"{name}_low"].values, data[f"{name}_high"].values
        axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    if f"{name}_null" in data:
        null = data[f"{name}_null"].broadcast_like(data[name]).values
        axis.plot(x, null, color=colour, linestyle=":", linewidth=0.8)
    control = getattr(result, "control", None)
    if control is not None and name in control.data:
        named = UNTRAINED in axis.get_legend_handles_labels()[1]
        places, mean = control.data[along].values, control.data[name].values
        light: Any = {"linewidth": 0.7, "marker": "x", "markersize": 3, "alpha": 0.55}
        axis.plot(places, mean, color=colour, label=None if named else UNTRAINED, **light)
    axis.set_xlabel("steps before its reveal" if along == "ahead" else along)
    if along in ("layer", "step", "ahead"):
        _whole_ticks(axis.xaxis)


def bands(axis: Axes, result: Labelled, labels: Mapping[str, str], along: str = "layer") -> None:
    """Draw several values into one panel with `band`; values that are NaN everywhere are left out.

    Args:
        axis (Axes): The panel.
        result (Result): The result, or any object with a dataset `data`.
        labels (mapping of str to str): Text in the legend, by name of the value.
        along (str): Name of the dimension; "layer" by default.
    """
    for series, (name, label) in enumerate(labels.items()):
        if result.data[name].notnull().any():
            band(axis, result, name, along, series=series, label=label)


def lines(
    result: Any, *drawn: Panel, note: str = "", width: float = 3.3, height: float = 2.3
) -> Figure:
    """Draw panels side by side, under a title with the model, the number of examples and a note.

    Args:
        result (Result): The result.
        *drawn (callable or tuple): The panels. A callable draws into the axes it is given, such as
            `partial(grid, …)`. A tuple is (y label, value or {value: text in the legend}, limits): values
            are drawn along their dimension. Limits are a pair, or "log".
        note (str): Text that follows the number of examples; "" by default.
        width (float): Width of a panel in inches; 3.3 by default.
        height (float): Height of a panel in inches; 2.3 by default.

    Returns:
        The figure.
    """
    with panels(1, len(drawn), width=width, height=height) as (figure, axes):
        for number, (axis, panel) in enumerate(zip(axes[0], drawn, strict=True)):
            if callable(panel):
                panel(axis)
            else:
                _lines(axis, result, *panel, series=number)
        headline(figure, f"{result.model}, n = {result.n}{note}")
    return figure


def _lines(
    axis: Axes,
    result: Any,
    label: str,
    values: str | Mapping[str, str],
    limits: Limits,
    *,
    series: int,
) -> None:
    if isinstance(values, str):
        band(axis, result, values, str(*result[values].dims), series=series)
    else:
        bands(axis, result, values, str(*result[next(iter(values))].dims))
        if not axis.lines:
            axis.text(0.5, 0.5, "does not apply", ha="center", transform=axis.transAxes)
            return
        legend_above(axis)
    axis.set_ylabel(label)
    if limits == LOG:
        log_scale(axis)
    else:
        axis.set_ylim(*limits)


def log_scale(axis: Axes) -> None:
    """Give y a logarithmic scale with plain numbers: 1 instead of 10⁰, 0.5 between two powers.

    Args:
        axis (Axes): The axes to change.
    """
    axis.set_yscale("log", nonpositive="mask")
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axis.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "25" else "")


def grid(
    axis: Axes,
    values: "xr.DataArray",
    label: str,
    *,
    x: str = "layer",
    y: str = "head",
    span: float | None = None,
    **options: Any,
) -> Any:
    """Draw a map of two dimensions with its colour bar.

    Args:
        axis (Axes): The panel.
        values (xr.DataArray): An array with the dimensions `x` and `y`.
        label (str): Text of the colour bar.
        x (str): Dimension across; "layer" by default.
        y (str): Dimension upwards; "head" by default.
        span (float): For lifts: a logarithmic scale from 1 / span to span. By default the scale is linear.
        **options: Arguments for matplotlib's `pcolormesh`, such as vmin and vmax.

    Returns:
        The matplotlib mesh that `pcolormesh` returns.
    """
    from matplotlib.colors import LogNorm

    shown = values.transpose(y, x)
    lift = {"cmap": LIFT_MAP, "norm": LogNorm(1 / span, span)} if span else {"cmap": SHARE_MAP}
    options = lift | options
    image = axis.pcolormesh(shown[x].values, shown[y].values, shown.values, **options)
    axis.set(xlabel=x, ylabel=y)
    for side, dim in ((axis.xaxis, x), (axis.yaxis, y)):
        if shown[dim].dtype.kind in "iu":
            _whole_ticks(side)
    bar = axis.figure.colorbar(image, ax=axis, label=label)
    if span:
        lift_ticks(bar)
    return image


def mark(
    axis: Axes, cells: "xr.DataArray", *, x: str = "layer", y: str = "head", **options: Any
) -> None:
    """Mark the cells of a map that are true.

    Args:
        axis (Axes): The panel with the map.
        cells (xr.DataArray): Booleans with the dimensions `x` and `y`.
        x (str): Dimension across; "layer" by default.
        y (str): Dimension upwards; "head" by default.
        **options: Arguments for matplotlib's `plot`, such as `marker` and `color`.
    """
    places = zip((x, y), np.nonzero(cells.transpose(x, y).values), strict=True)
    axis.plot(*(cells[dim].values[place] for dim, place in places), linestyle="", **options)


def dots(axis: Axes, data: "xr.Dataset", labels: Mapping[str, str]) -> None:
    """Draw single values below each other, each with its interval, and with its null as a diamond.

    Args:
        axis (Axes): The panel.
        data (xr.Dataset): Scalars `x`, `x_low`, `x_high` and, where there is a null, `x_null`.
        labels (mapping of str to str): Text beside each value, by name of the value.
    """
    for y, name in enumerate(labels):
        value, low, high = (float(data[name + end]) for end in ("", "_low", "_high"))
        axis.plot([low, high], [y, y], color="0.45")
        axis.plot(value, y, "o", color="0.45", markersize=4)
        if f"{name}_null" in data:
            null = float(data[f"{name}_null"])
            axis.plot(null, y, "D", color="0.5", mfc="white", ms=6, zorder=1)
    axis.set_yticks(range(len(labels)), list(labels.values()))
    axis.set(ylim=(len(labels) - 0.5, -0.5), xlabel="value (diamond: null)")


def default_plot(result: Any) -> Figure:
    """Draw every value as a line over one dimension, or as a map over two.

    Args:
        result (Result): The result. Values with more than two dimensions are averaged over the other
            dimensions.

    Returns:
        The figure.
    """
    values: list[str] = result.values
    across = min(_ACROSS, len(values)) or 1
    with panels(-(-len(values) // across) or 1, across, count=len(values)) as (figure, axes):
        for axis, name in zip(axes.flat, values, strict=False):
            _panel(axis, result, name)
        headline(figure, f"{result.model}, n = {result.n}")
    return figure


def _panel(axis: Axes, result: Labelled, name: str) -> None:
    value, unit = result.data[name], result.data[name].attrs.get("units", "")
    dims = sorted(map(str, value.dims), key=lambda d: (*_ORDER, d).index(d))
    label = f"{name} ({unit})" if unit else name
    has_null = f"{name}_null" in result.data
    if not dims:
        dots(axis, result.data, {name: ""})
        axis.set(yticks=[], xlabel=f"{label}; diamond: null" if has_null else label)
    elif len(dims) == 1:
        band(axis, result, name, dims[0])
        axis.set_ylabel(f"{label}; dotted: null" if has_null else label)
    else:  # a mean over what does not fit
        grid(axis, value.mean(dims[2:]), label, x=dims[0], y=dims[1])


def _whole_ticks(side: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    if isinstance(side.get_major_locator(), MaxNLocator):
        side.get_major_locator().set_params(integer=True)
