"""Draw an attention pattern: queries down, keys across, both with their tokens.

A model computes the pattern (`Model.pattern`); this module only draws it.
"""

from typing import Any

import xarray as xr

from .drawing import Axes, figure_size, panels
from .heatmap import colours, room_of, ticks

_SIDE = 5.0  # inches
_TALL = 0.86  # height over width: a square beside its scale


def draw_pattern(pattern: xr.DataArray, *, tokens: bool | None = None, **size: Any) -> Axes:
    """Draw the mean over the layers and heads in `pattern`; `size` is that of `figure_size`."""
    averaged = [str(dim) for dim in pattern.dims if dim not in ("query", "key")]
    title = [str(pattern.attrs["model"]), f"step {int(pattern['step'])}"]
    title += [f"{dim} {int(pattern[dim])}" for dim in ("layer", "head") if dim not in averaged]
    words = ", ".join(title) + (
        f"; mean over {' and '.join(f'{d}s' for d in averaged)}" if averaged else ""
    )
    values = pattern.mean(averaged).transpose("query", "key")
    by_key = values.rename(key="position")
    by_query = values.drop_vars(["token", "region", "masked"]).rename(query="position")
    of_query = values["query_token"].rename(query="key")
    if size.get("height") is None and size.get("width") is not None:
        size["height"] = _TALL * size["width"]
    with figure_size(**size), panels(1, 1, width=_SIDE, height=_TALL * _SIDE) as (figure, axes):
        axis: Axes = axes[0, 0]
        image = colours(axis, values.values, lift=False)
        axis.autoscale(False)
        across, down = room_of(axis, size.get("ax") is None)
        ticks(axis.yaxis, by_query, "position", of_query, down, tokens)
        ticks(axis.xaxis, by_key, "position", values["token"], across, tokens)
        answer = (values["region"] == "answer").values
        if answer.any() and not answer.all():
            edge = int(answer.argmax()) - 0.5
            axis.axvline(edge, color="white", linewidth=0.8)
            axis.axhline(edge, color="white", linewidth=0.8)
        axis.set(xlabel="key", ylabel="query")
        axis.set_title(words, parse_math=False)
        figure.colorbar(image, ax=axis, label="attention of a row")
    return axis
