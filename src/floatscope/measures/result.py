"""The result of a measure: a labelled dataset, which is also available as a tidy table and a figure.

For every value `x`, the dataset contains `x` (mean over the examples), `x_low` and `x_high` (ends of the 95 %
interval over the examples) and, if the value has a null, `x_null` and `x_lift` = x / x_null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..errors import UsageError
from ..plots import Figure, figure_size, save
from ..registry import dashed
from ..stats import intervals
from ..stats.digits import ABSENT, digits, estimate
from . import latex

# Units of values between 0 and 1.
_SHARES = ("share", "probability", "Jaccard", "1 − Jaccard", "of the maximum", "total variation")
_ENDS = ("low", "high")
_RANGES: dict[tuple[str, ...], intervals.Bounds] = {  # beginnings of units → range
    _SHARES: intervals.SHARES,
    ("cosine", "correlation"): (-1, 1),
    ("1 − cos",): (0, 2),
    ("ranks / length",): (-0.5, 0.5),  # a difference of mean ranks
    ("keys", "position", "states", "tokens", "heads", "layer", "step"): intervals.COUNTS,
    ("×", "attention per key", "nats"): intervals.COUNTS,  # not counts, but never negative
}


@dataclass(eq=False, repr=False)
class Result:
    """The values of a measure for one model, with intervals, nulls and lifts.

    Variables of `data` can be read as attributes: `result.absorption` is `result.data["absorption"]`.

    Args:
        data (xr.Dataset): For each value `x`: `x`, `x_low`, `x_high` and, if it has a null, `x_null` and
            `x_lift`. The attribute "units" of each variable is its unit.
        measure (Measure): The measure with its configuration.
        examples (xr.Dataset): The values of the single examples, along the dimension `example`. Its
            coordinate `example` contains the prompts' ids if they are known.
        model (str): The model's name; "" by default.
        values (list of str): Names of the values in `data`, without the names that end in `_low`, `_null` and
            so on.
        control (Result): The same measure of an untrained model, drawn lightly in figures; None by default.
    """

    data: xr.Dataset
    measure: Any  # the Measure that computed the result
    examples: xr.Dataset  # values by example, with the coordinate `id`
    model: str = ""
    values: list[str] = field(default_factory=list)
    control: "Result | None" = None  # of an untrained model, for figures

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "data":
            raise AttributeError(name)
        return getattr(self.data, name)

    def __getitem__(self, name: str) -> xr.DataArray:
        return self.data[name]

    @property
    def n(self) -> int:
        """Number of examples."""
        return int(self.examples.sizes["example"])

    def table(self) -> pd.DataFrame:
        """Return a tidy table: one row per value and cell, with mean, null, lift, low, high, unit and n."""
        suffixes = ("null", "lift", "low", "high")
        frames = [tidy(self.data, n, suffixes).assign(n=self._count(n)) for n in self.values]
        table = pd.concat(frames, ignore_index=True)
        table.insert(0, "measure", type(self.measure).__name__)
        table.insert(0, "model", self.model)
        return table

    def _count(self, name: str) -> Any:
        """Count the examples for which a value applies, by cell."""
        values = self.examples.variables.get(name)
        if values is None or "example" not in values.dims:
            return self.n
        return values.notnull().sum("example").transpose(*self.data[name].dims).values.ravel()

    def latex(self, *, caption: str = "", label: str = "") -> str:
        """Format the table as LaTeX for a paper that uses booktabs: mean with 95 % interval, null and n.

        Args:
            caption (str): The table's caption; by default the measure, the model and n.
            label (str): The table's LaTeX label; by default "tab:" and the measure's name.

        Returns:
            A `table` environment, or `table*` if it does not fit into one column.
        """
        measure, dims = type(self.measure).__name__, [str(dim) for dim in self.data.dims]
        caption = caption or f"{measure} of {self.model}, n = {self.n}."
        label = label or f"tab:{dashed(measure)}"
        return latex_table(self.table(), dims, ["null", "n"], caption=caption, label=label)

    def plot(self, **size: Any) -> Figure:
        """Draw the measure's figure.

        Args:
            ax: Matplotlib axes to draw into: one Axes, or one for each panel.
            panel: The panel to draw if `ax` is a single Axes, counted from 0.
            width: Width of the whole figure in inches. Panels that do not fit side by side are stacked.
            height: Height of the whole figure in inches; by default, the height that the panels need.
            font_size: Font size in points; by default rcParams["font.size"] if you changed it, else 8.
        """
        with figure_size(**size):
            figure: Figure = self.measure.plot(self)
        return figure

    def save_figure(self, path: str | Path, **size: Any) -> Path:
        """Draw the measure's figure and write it to a file.

        Args:
            path (str or Path): The file; its suffix .svg, .pdf or .png selects the format.
            **size: The size and the axes, as for `plot`.

        Returns:
            The path.

        Example:
            `result.save_figure("absorption.pdf", width=3.3)`
        """
        return save(self.plot(**size), Path(path))

    def __repr__(self) -> str:
        lines = [f"<floatscope.Result {self.measure!r} · {self.model} · n = {self.n}"]
        for name in self.values:
            array = self.data[name]
            dims = " × ".join(f"{self.data.sizes[d]} {d}" for d in array.dims) or "one number"
            unit = array.attrs.get("units", "")
            lines.append(f"  {name} [{unit}] ({dims}): {self._range(name)}")
        for key in ("gold", "copy", "passage"):
            if self.data.attrs.get(key):
                lines.append(f"  {key}: {self.data.attrs[key]}")
        if self.n == 1:
            lines.append("  one example: no interval")
        return "\n".join(lines) + ">"

    def _range(self, name: str) -> str:
        """Format a single value with interval and null, or the ranges over cells of value, null and lift."""
        data, several = self.data, self.data[name].ndim > 0
        texts = []
        for end in ("", "_null", "_lift") if several else ("", "_null"):
            values = data.get(name + end)
            if values is None or (several and end and not values.notnull().any()):
                continue
            low, high = float(values.min()), float(values.max())
            text = f"{low:.3g} … {high:.3g}" if several else f"{low:.3g}"
            texts.append(f"{end[1:]} {text}".lstrip())
        if not several:
            texts[0] += " [{:.3g}, {:.3g}]".format(*(float(data[f"{name}_{end}"]) for end in _ENDS))
        return ", ".join(texts)


def tidy(data: xr.Dataset, name: str, suffixes: Sequence[str]) -> pd.DataFrame:
    """Return a table of one value: a row per cell with labels, mean, `<name>_<suffix>` columns and unit."""
    main = data.variables[name]
    # one frame, because adding columns to a frame is much slower
    columns: dict[str, Any] = {"value": name}
    for dim, places in zip(main.dims, np.indices(main.shape), strict=True):
        columns[str(dim)] = data.get_index(dim).take(places.ravel())
    columns["mean"] = main.values.ravel()
    for end in suffixes:
        other = data.variables.get(f"{name}_{end}", xr.Variable((), np.nan))
        columns[end] = other.set_dims(dict(main.sizes)).transpose(*main.dims).values.ravel()
    return pd.DataFrame(columns | {"unit": main.attrs.get("units", "")})


def bounds_of(values: Any, attrs: Mapping[Any, Any]) -> intervals.Bounds | None:
    """Return the range of a value from its unit and its attribute `most`; None if any value lies outside."""
    unit = str(attrs.get("units", ""))
    ranges = [ends for units, ends in _RANGES.items() if unit.startswith(units)]
    if not ranges or not values.size:
        return None
    low, high = ranges[0]
    high = min(high, float(attrs.get("most", high)))
    slack = 1e-6 * (high - low if np.isfinite(high) else 1)
    return (low, high) if not ((values < low - slack) | (values > high + slack)).any() else None


def summarise(
    examples: Sequence[xr.Dataset], measure: Any, model: str, units: dict[str, str]
) -> Result:
    """Combine one dataset per example (values `x` and nulls `x_null`) into means, intervals and lifts.

    Attributes of an example: `id` identifies the example for pairing; `most` may give the largest possible
    value of a count, such as {"lifetime": 32} for 32 states; `gold` is whether the example has a gold region,
    and the result states how many examples have one.
    """
    if not examples:
        raise UsageError("no traces", "Give at least one.")
    joined = side_by_side(examples)
    ids = [example.attrs.get("id") for example in examples]
    if all(ids):
        joined = joined.assign_coords(example=np.array(ids, dtype=np.str_))
    limits = pd.DataFrame([example.attrs.get("most", {}) for example in examples])
    for name, limit in limits.fillna(np.inf).max().items():
        joined[name].attrs["most"] = float(limit)
    result = summarise_joined(joined, measure, model, units)
    if golds := [bool(example.attrs["gold"]) for example in examples if "gold" in example.attrs]:
        note = f"{sum(golds)} of {len(golds)} traces name a gold region"
        result.data.attrs["gold"] = f"{note}; the others are NaN there"
    return result


def summarise_joined(joined: xr.Dataset, measure: Any, model: str, units: dict[str, str]) -> Result:
    """Compute the result of `summarise` from examples already joined along the dimension `example`."""
    values = [str(v) for v in joined.data_vars if not str(v).endswith("_null")]
    variables: dict[str, xr.Variable] = {}  # collected to build one dataset at the end
    for name in values:
        array = joined[name].variable
        if "example" not in array.dims:
            array = array.set_dims(("example", *array.dims))
        array = array.transpose("example", ...)
        unit = {"units": units.get(name, "")}
        attributes = unit | {key: array.attrs[key] for key in ("most",) if key in array.attrs}
        ends = intervals.mean(array.values, bounds=bounds_of(array, attributes), smooth=True)
        for end, interval in zip(("", "_low", "_high"), ends, strict=True):
            variables[f"{name}{end}"] = xr.Variable(array.dims[1:], interval, attributes)
        if f"{name}_null" in joined:
            null = joined[f"{name}_null"].variable
            null = null.mean("example") if "example" in null.dims else null
            lift = variables[name] / null.where(null != 0)  # a difference has null 0, and no lift
            variables[f"{name}_null"] = xr.Variable(null.dims, null.values, unit)
            variables[f"{name}_lift"] = xr.Variable(lift.dims, lift.values, {"units": "×"})
    coords = {k: v for k, v in joined.coords.items() if "example" not in v.dims}
    attrs = {"measure": repr(measure), "model": model, "n": joined.sizes["example"]}
    return Result(xr.Dataset(variables, coords, attrs), measure, joined, model, values)


def side_by_side(examples: Sequence[xr.Dataset]) -> xr.Dataset:
    """Join examples along a new first dimension `example`; values that an example lacks are NaN.

    Coordinates and attributes are those of the first example. Examples with equal variables, shapes and
    coordinates are stacked, which is much faster than concatenating them.
    """
    first = examples[0]
    if "example" in first.sizes or not all(_alike(first, other) for other in examples[1:]):
        concat_options: Any = {"coords": "minimal", "compat": "override"}
        return xr.concat(list(examples), dim="example", join="outer", **concat_options)
    stacked = {}
    for name, array in first.data_vars.variables.items():
        values = np.stack([example.variables[name].values for example in examples])
        stacked[name] = ("example", *array.dims), values, array.attrs
    return xr.Dataset(stacked, first.coords, first.attrs)


def _alike(a: xr.Dataset, b: xr.Dataset) -> bool:
    """Return whether two datasets can be stacked: equal variables, shapes and coordinates."""

    def form(data: xr.Dataset) -> Any:
        arrays = {name: (v.dims, v.shape, v.dtype) for name, v in data.variables.items()}
        return arrays, data.coords.keys(), {name: type(x) for name, x in data.xindexes.items()}

    return form(a) == form(b) and all(x.equals(b.xindexes[name]) for name, x in a.xindexes.items())


def latex_table(
    frame: pd.DataFrame, labels: Sequence[str], numbers: Sequence[str], *, caption: str, label: str
) -> str:
    """Format a tidy table as LaTeX: a group per value with labels, mean with interval, and `numbers`."""
    labels = [name for name in frame.columns if name in labels]
    groups = []
    for name, rows in frame.groupby("value", sort=False):
        unit = rows["unit"].iloc[0]
        lines = [
            [
                *(ABSENT if pd.isna(row[column]) else str(row[column]) for column in labels),
                estimate(row["mean"], row["low"], row["high"]),
                *(str(row[column]) if column == "n" else digits(row[column]) for column in numbers),
            ]
            for row in rows.to_dict("records")
        ]
        groups.append((f"{name} ({unit})" if unit else str(name), lines))
    header = [*labels, "mean [95 %]", *numbers]
    align = "l" * len(labels) + "r" * (1 + len(numbers))
    return latex.table(header, groups, align=align, caption=caption, label=label)
