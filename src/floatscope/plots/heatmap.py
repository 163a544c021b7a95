"""Draw a trace as a heat map of any two of step, layer, head, position and region, with token labels.

The map shows a single decoding and tests nothing. Measures test statements over many examples.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import xarray as xr

from ..errors import UsageError
from ..trace import Trace
from .attention_map import DIMENSIONS, Selection, attention_map, regions_of
from .drawing import LIFT_MAP, POINTS, SHARE_MAP, Axes, figure_size, lift_ticks, panels, points

_WIDE = {"position": 6.8, "region": 3.3}  # inches by default, by what is on the x axis
_LEAST = 4.0  # points below which letters are not letters
_SPACE = 1.25  # a line of text over the size of its letters
_STRONGEST = 14  # tokens named where there is no room for all of them
_SPAN = 100.0  # lifts beyond it, up or down, share the last colour


def draw(
    trace: Trace,
    rows: str,
    columns: str,
    selection: Selection,
    *,
    lift: bool = False,
    tokens: bool | None = None,
    note: str = "",
    **size: Any,
) -> Axes:
    """Draw the map that `Trace.heatmap` describes; `note` ends the title, `size` is that of `figure_size`."""
    values = attention_map(trace, rows, columns, lift=lift, **selection)
    step = selection.get("step")
    data, natural = trace.data, _WIDE.get(columns, 3.3)
    with figure_size(**size), panels(1, 1, width=natural, height=2.6) as (figure, axes):
        axis: Axes = axes[0, 0]
        image = colours(axis, values.values, lift)
        axis.autoscale(False)
        room = room_of(axis, size.get("ax") is None)
        # One step has the tokens it saw; several have those that stand there in the end.
        words = data["final_token"] if not isinstance(step, int) else data["token"].sel(step=step)
        ticks(axis.yaxis, values, rows, words, room[1], tokens)
        ticks(axis.xaxis, values, columns, words, room[0], tokens)
        grey = "; grey: not there yet" if np.isnan(values.values).any() else ""
        axis.set(xlabel=columns + grey, ylabel=rows)
        above = _regions(axis, values, columns, data, room[0], "black" if lift else "white")
        title = _title(data, {rows, columns}, selection) + note
        axis.set_title(title, pad=points(16 if above else 5), parse_math=False)
        label = "lift over uniform attention (×)" if lift else "share of attention"
        bar = figure.colorbar(image, ax=axis, label=label)
        if lift:
            lift_ticks(bar)
    return axis


def colours(axis: Axes, values: np.ndarray, lift: bool) -> Any:
    import matplotlib
    from matplotlib.colors import LogNorm

    options: dict[str, Any] = {"vmin": 0}
    if lift:
        positive = values[np.isfinite(values) & (values > 0)]
        largest = float(np.exp(abs(np.log(positive)).max())) if len(positive) else 1.0
        span = min(max(largest, 2.0), _SPAN)
        # A lift of 0 has the last colour; it is not left blank.
        values = np.clip(values, 1 / span, span)
        options = {"norm": LogNorm(1 / span, span)}
    map_ = matplotlib.colormaps[LIFT_MAP if lift else SHARE_MAP].with_extremes(bad="0.85")
    return axis.imshow(values, aspect="auto", interpolation="nearest", cmap=map_, **options)


def room_of(axis: Axes, own_figure: bool) -> tuple[float, float]:
    """Return the width and height of the axes in points; estimated if the figure has no layout yet."""
    if not own_figure:
        box = axis.get_window_extent()
        return box.width * 72 / axis.figure.dpi, box.height * 72 / axis.figure.dpi
    figure: Any = axis.figure
    width, height = figure.get_size_inches()
    return 72 * width - points(80), 72 * height - points(90)


def ticks(
    axis: Any, values: Any, dim: str, words: xr.DataArray, room: float, tokens: bool | None
) -> None:
    labels = values[dim].values
    fits = int(room / points(_SPACE * POINTS))
    if dim == "position" and tokens is not False:
        _tokens(axis, values, words, room, fits, forced=tokens is True)
        return
    along_x = axis.axis_name == "x"
    if dim == "region":
        axis.set_ticks(range(len(labels)), [str(x) for x in labels], parse_math=False)
        axis.set_tick_params(rotation=90 if along_x else 0)
        return
    max_labels = fits // 2 if along_x else fits  # numbers lie, and are wider than they are high
    coarse = (1, 2, 5, 10, 20, 50, 100, 200, 500, len(labels))
    interval = next(n for n in coarse if len(labels) <= n * max(max_labels, 1))
    labelled = range(0, len(labels), interval)
    axis.set_ticks(list(labelled), [str(labels[i]) for i in labelled])


def _tokens(
    axis: Any, values: Any, tokens: xr.DataArray, room: float, fits: int, *, forced: bool
) -> None:
    """Label every token if there is room; otherwise the strongest ones, each with its position."""
    positions = values["position"].values
    words = [shown(str(t)) for t in tokens.sel(key=positions).values]
    size = points(POINTS)
    if forced and len(positions) > fits:
        size = room / len(positions) / _SPACE
        if size < _LEAST:
            raise UsageError(
                f"{len(positions)} tokens in {room / 72:.1f} in would have letters of {size:.1f} points",
                'Choose fewer, such as region="answer", or a larger width=; or leave out tokens=True.',
            )
    if forced or len(positions) <= fits:
        labelled = list(range(len(positions)))
        labels = words
    else:
        other = next(d for d in values.dims if d != "position")
        height = np.nan_to_num(values.max(other).values, nan=-1.0)
        min_distance = len(positions) / fits
        labelled = []
        for i in np.argsort(-height, kind="stable"):
            if len(labelled) < _STRONGEST and all(
                abs(int(i) - j) >= min_distance for j in labelled
            ):
                labelled.append(int(i))
        labelled.sort()
        labels = [f"{words[i]} {positions[i]}" for i in labelled]
    axis.set_ticks(labelled, labels, parse_math=False, fontsize=size)
    axis.set_tick_params(rotation=90 if axis.axis_name == "x" else 0)


def shown(token: str) -> str:
    """Return a token as a label of at most 14 characters; line breaks, tabs and spaces become symbols."""
    text = token.replace("\n", "↵").replace("\t", "⇥").strip(" ")
    return (text if len(text) <= 14 else f"{text[:13]}…") or "␣"


def _regions(
    axis: Axes, values: Any, columns: str, data: xr.Dataset, room: float, line: str
) -> bool:
    """Mark the borders of regions on a position axis, and name the regions that are wide enough.

    Returns whether any region was named.
    """
    if columns != "position":
        return False
    names = data["region"].sel(key=values["position"].values).values
    spans = [[i for i, _ in group] for _, group in groupby(enumerate(names), key=lambda x: x[1])]
    width, gold, any_named = room / len(names), str(data.attrs["gold"]), False
    for span in spans:
        name = str(names[span[0]])
        if span[0] and name == "answer":
            axis.axvline(span[0] - 0.5, color=line, linewidth=0.8)
        for edge in (span[0] - 0.5, span[-1] + 0.5):  # above, where they cover nothing
            mark: Any = {"color": "black", "linewidth": 0.6, "clip_on": False}
            axis.plot([edge, edge], [1, 1.05], transform=axis.get_xaxis_transform(), **mark)
        text = f"{name} ★" if name == gold else name
        short = text.replace("passage ", "p")
        label = next((t for t in (text, short) if points(5) * len(t) <= width * len(span)), "")
        if label:
            middle = (span[0] + span[-1]) / 2
            where: Any = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axis.text(middle, 1.03, label, parse_math=False, fontsize=points(7), **where)
            any_named = True
    return any_named


def _title(data: xr.Dataset, shown: set[str], selection: Selection) -> str:
    """Return the title of a map: the model, the selection, and the dimensions that are averaged over."""
    parts, means = [str(data.attrs["model"])], []
    for dim in DIMENSIONS:
        choice = selection.get(dim)
        if dim in shown:
            continue
        if choice is None or isinstance(choice, Sequence):
            means.append(f"{dim}s" if choice is None else f"{dim}s {', '.join(map(str, choice))}")
        else:
            parts.append(f"{dim} {choice}")
    region = selection.get("region")
    if region is not None:
        gold = str(data.attrs["gold"])
        names = [f"{n} (gold)" if n == gold else n for n in regions_of(data, region)]
        parts.append(f"on {' + '.join(names)}")
    return ", ".join(parts) + (f"; mean over {' and '.join(means)}" if means else "")
