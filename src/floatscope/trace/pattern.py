"""An attention pattern, drawn: queries down, keys across, with their tokens.

The pattern is computed by a model (`Model.pattern`); this only shows it.
"""

from typing import Any, Protocol, runtime_checkable

import xarray as xr

from .drawing import Axes, asked, panels
from .heatmap import colours, room_of, ticks

_SIDE = 5.0  # inches
_TALL = 0.86  # height over width: a square beside its scale


@runtime_checkable
class Patterns(Protocol):
    """A model that computes patterns again."""

    def pattern(
        self, trace: Any, *, step: int, layer: int | None = ..., head: int | None = ...
    ) -> xr.DataArray: ...


def draw_pattern(
    pattern: xr.DataArray,
    *,
    tokens: bool | None = None,
    ax: Axes | None = None,
    width: float | None = None,
    height: float | None = None,
    font_size: float | None = None,
) -> Axes:
    """One matrix; the mean over what is not chosen. `Trace.show` says the rest."""
    rest = [str(dim) for dim in pattern.dims if dim not in ("query", "key")]
    title = [str(pattern.attrs["model"]), f"step {int(pattern['step'])}"]
    title += [f"{dim} {int(pattern[dim])}" for dim in ("layer", "head") if dim not in rest]
    words = ", ".join(title) + (
        f"; mean over {' and '.join(f'{d}s' for d in rest)}" if rest else ""
    )
    values = pattern.mean(rest).transpose("query", "key")
    by_key = values.rename(key="position")
    by_query = values.drop_vars(["token", "region", "masked"]).rename(query="position")
    of_query = values["query_token"].rename(query="key")
    if height is None and width is not None:
        height = _TALL * width
    with (
        asked(ax=ax, width=width, height=height, font_size=font_size),
        panels(1, 1, width=_SIDE, height=_TALL * _SIDE) as (figure, axes),
    ):
        axis: Axes = axes[0, 0]
        image = colours(axis, values.values, lift=False)
        axis.autoscale(False)
        across, down = room_of(axis, ax is None)
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
