"""What compare(...) returns: the aligned values and differences, as a table and as a figure.

It holds and draws; what is compared with what is decided in compare.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..errors import UsageError
from .result import Result
from .style import COLOURS, LINES, MARKERS, Figure, asked, headline, legend, panels, save

_BESIDE = ("null", "low", "high")
_PANELS = 8


@dataclass(eq=False, repr=False)
class Comparison:
    """`data`: each value with `model` in front (mean, low, high, null), and x_difference along
    `versus`: the first model minus each other one, with its interval."""

    data: xr.Dataset
    results: tuple[Result, ...]
    values: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> xr.DataArray:
        return self.data[name]

    def table(self) -> pd.DataFrame:
        """Tidy: one line per model and value, then one per difference (`versus` filled)."""
        frames = []
        for name in self.values:
            for end, along in (("", "model"), ("_difference", "versus")):
                main = self.data[name + end]
                frame = main.rename("mean").to_dataframe().reset_index()[[*main.dims, "mean"]]
                for beside in _BESIDE:
                    other = self.data.get(f"{name}{end}_{beside}")
                    frame[beside] = np.nan if other is None else other.values.ravel()
                if along == "versus":
                    frame.insert(0, "model", str(self.data["model"].values[0]))
                frame.insert(0, "value", name + end)
                frame["unit"] = self.data[name].attrs.get("units", "")
                frames.append(frame)
        table = pd.concat(frames, ignore_index=True)
        table.insert(0, "measure", type(self.results[0].measure).__name__)
        return table

    def plot(self, *values: str, **size: Any) -> Figure:
        """A panel per value and category: models as lines on one scale, bands, dotted nulls.

        `size`: ax, panel, width, height and font_size, as in `Result.plot`.
        """
        with asked(**size):
            return self._plot(values)

    def _plot(self, values: tuple[str, ...]) -> Figure:
        for name in values:
            if name not in self.values:
                raise UsageError(
                    f"no value {name!r:.80} in this comparison",
                    f"There are {', '.join(self.values)}.",
                )
        shown = [(v, w) for v in values or self.values for w in _panels(self.data[v])]
        if not shown:
            raise UsageError(
                f"nothing to draw of {', '.join(values or self.values) or 'this comparison'}",
                f"A figure takes values over depth and at most {_PANELS} categories.",
            )
        columns = min(4, len(shown))
        width = 3.3 if columns < 3 else 2.2
        shape = -(-len(shown) // columns), columns
        with panels(*shape, count=len(shown), width=width, height=2.0) as (figure, axes):
            flat = list(axes.flat)[: len(shown)]
            for axis, (name, where) in zip(flat, shown, strict=True):
                self._panel(axis, name, where)
            for name in dict.fromkeys(v for v, _ in shown):
                _one_scale([x for x, (v, _) in zip(flat, shown, strict=True) if v == name])
            legend(figure, flat[0])
            note = f"{self.results[0].measure!r} · {self.data.attrs['interval']}; dotted: null"
            headline(figure, note)
        return figure

    def _panel(self, axis: Any, name: str, where: dict[Any, Any]) -> None:
        for i, model in enumerate(self.data["model"].values):
            _draw(axis, self.data.sel(where | {"model": model}), name, i, str(model))
        axis.set_title(" → ".join([name, *map(str, where.values())]))
        axis.set_ylabel(self.data[name].attrs.get("units", ""))

    def save_figure(self, path: str | Path, *values: str, **size: Any) -> Path:
        return save(self.plot(*values, **size), Path(path))

    def __repr__(self) -> str:
        a = self.data.attrs
        models = ", ".join(map(str, self.data["model"].values))
        head = f"<floatscope.Comparison {self.results[0].measure!r}: {models}"
        return (
            f"{head}\n  {', '.join(self.values)}\n  {a['interval']}\n  left out: {a['left_out']}>"
        )


def _panels(array: xr.DataArray) -> list[dict[Any, Any]]:
    """Where each panel stands: one for each entry of the dimension beside depth, if that is few."""
    rest = [d for d in array.dims if d not in ("model", "depth")]
    if not rest:
        return [{}]
    some = array.dropna(rest[0], how="all")[rest[0]].values
    return [{rest[0]: x} for x in some] if len(rest) == 1 and 0 < len(some) <= _PANELS else []


def _draw(axis: Any, data: xr.Dataset, name: str, i: int, label: str) -> None:
    colour, line = COLOURS[i % len(COLOURS)], LINES[i % len(LINES)]
    value, low, high = (data[name + end].values for end in ("", "_low", "_high"))
    null = data[f"{name}_null"].values if f"{name}_null" in data else None
    if "depth" in data[name].dims:
        x = data["depth"].values
        axis.plot(x, value, color=colour, linestyle=line, label=label)
        axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        if null is not None:
            axis.plot(x, null, color=colour, linestyle=":", linewidth=0.8)
        axis.set_xlabel("relative depth")
        return
    axis.plot([i, i], [low, high], color=colour)
    axis.plot(i, value, MARKERS[i % len(MARKERS)], color=colour, label=label)
    if null is not None:
        axis.plot([i - 0.3, i + 0.3], [null, null], color=colour, linestyle=":")
    axis.set_xticks([])
    axis.set_xlim(-0.7, max(i, 1) + 0.7)


def _one_scale(axes: list[Any]) -> None:
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(0, *(low for low, _ in limits)), max(high for _, high in limits))
