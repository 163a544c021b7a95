"""The figure of a measure that draws none of its own: one panel per value, by its dimensions."""

from typing import TYPE_CHECKING, Any

from .style import COLOURS, SHARE_MAP, Figure, Labelled, band, headline, panels

if TYPE_CHECKING:
    import xarray as xr

_ACROSS = 3  # panels side by side
_ORDER = ("layer", "head", "step", "key")  # which dimensions a panel keeps, the first first


def default_plot(result: Any) -> Figure:
    """A value over layers (or another dimension) as a line with its interval, over two as a map."""
    values: list[str] = result.values
    across = min(_ACROSS, len(values)) or 1
    with panels(-(-len(values) // across) or 1, across, count=len(values)) as (figure, axes):
        for axis, name in zip(axes.flat, values, strict=False):
            _panel(axis, result, name)
        headline(figure, f"{result.model}, n = {result.n}")
    return figure


def _panel(axis: Any, result: Labelled, name: str) -> None:
    value, unit = result.data[name], result.data[name].attrs.get("units", "")
    rest = sorted(map(str, value.dims), key=lambda d: (*_ORDER, d).index(d))
    label = f"{name} ({unit})" if unit else name
    if not rest:
        _dot(axis, result.data, name, label)
        return
    if len(rest) == 1:
        band(axis, result, name, rest[0])
        axis.set_ylabel(f"{label}; dotted: null" if f"{name}_null" in result.data else label)
        return
    grid = value.mean(rest[2:]).transpose(rest[1], rest[0])  # a mean over what does not fit
    image = axis.pcolormesh(grid[rest[0]], grid[rest[1]], grid.values, cmap=SHARE_MAP)
    axis.set(xlabel=rest[0], ylabel=rest[1])
    axis.figure.colorbar(image, ax=axis, label=label)


def _dot(axis: Any, data: "xr.Dataset", name: str, label: str) -> None:
    low, high = float(data[f"{name}_low"]), float(data[f"{name}_high"])
    axis.plot([low, high], [0, 0], color=COLOURS[0])
    axis.plot(float(data[name]), 0, "o", color=COLOURS[0])
    if f"{name}_null" in data:
        axis.plot(float(data[f"{name}_null"]), 0, "D", color="0.5", mfc="white", zorder=1)
    axis.set(yticks=[], xlabel=f"{label}; diamond: null" if f"{name}_null" in data else label)
