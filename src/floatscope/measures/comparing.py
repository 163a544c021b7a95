"""Compare results of one measure for several models, with intervals of the differences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from ..errors import UsageError
from ..plots import COLOURS, MARKERS, Figure, band, figure_size, headline, legend, panels, save
from ..registry import dashed
from ..stats.intervals import difference, independent, mean, pair
from .result import Result, bounds_of, latex_table, tidy

_PANELS = 8
_BESIDE = ("null", "low", "high")


@dataclass(eq=False, repr=False)
class Comparison:
    """Results of one measure for several models, side by side.

    Args:
        data (xr.Dataset): Each value `x` with the dimension `model` first (`x`, `x_low`, `x_high`, `x_null`),
            and `x_difference` with its interval along `versus`: the first model minus each of the other
            models.
        results (tuple of Result): The results that were compared.
        values (list of str): Names of the values that could be compared.
    """

    data: xr.Dataset
    results: tuple[Result, ...]
    values: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> xr.DataArray:
        return self.data[name]

    def table(self) -> pd.DataFrame:
        """Return a tidy table with a row per model and value, then a row per difference (column `versus`)."""
        frames = []
        for name in self.values:
            frames.append(tidy(self.data, name, _BESIDE))
            frames.append(tidy(self.data, f"{name}_difference", _BESIDE))
            frames[-1].insert(1, "model", str(self.data["model"].values[0]))
        table = pd.concat(frames, ignore_index=True)
        table.insert(0, "measure", type(self.results[0].measure).__name__)
        return table

    def latex(self, *, caption: str = "", label: str = "") -> str:
        """Format the table as LaTeX for a paper that uses booktabs: means, intervals and differences.

        Args:
            caption (str): The table's caption; by default the measure and the models.
            label (str): The table's LaTeX label; by default derived from the measure's name.
        """
        measure = type(self.results[0].measure).__name__
        models = ", ".join(map(str, self.data["model"].values))
        caption = caption or f"{measure} of {models}."
        label = label or f"tab:{dashed(measure)}-compared"
        dims = [str(dim) for dim in self.data.dims]
        return latex_table(self.table(), dims, ["null"], caption=caption, label=label)

    def plot(self, *values: str, **size: Any) -> Figure:
        """Draw a panel per value and category, with a line per model, bands for intervals and dotted nulls.

        Panels of one value share their scale.

        Args:
            *values (str): Names of the values to draw; by default all.
            **size: ax, panel, width, height and font_size, as in `Result.plot`.
        """
        for name in values:
            if name not in self.values:
                remedy = f"There are {', '.join(self.values)}."
                raise UsageError(f"no value {name!r:.80} in this comparison", remedy)
        shown = [(v, w) for v in values or self.values for w in _panels(self.data[v])]
        if not shown:
            problem = f"nothing to draw of {', '.join(values or self.values) or 'this comparison'}"
            remedy = f"A figure can show values over depth and at most {_PANELS} categories."
            raise UsageError(problem, remedy)
        columns = min(4, len(shown))
        layout: Any = {"width": 3.3 if columns < 3 else 2.2, "height": 2.0, "count": len(shown)}
        with (
            figure_size(**size),
            panels(-(-len(shown) // columns), columns, **layout) as (figure, axes),
        ):
            flat = list(axes.flat)[: len(shown)]
            for axis, (name, where) in zip(flat, shown, strict=True):
                self._panel(axis, name, where)
            for name in {v for v, _ in shown}:  # the same scale in all panels of a value
                peers = [x for x, (v, _) in zip(flat, shown, strict=True) if v == name]
                low, high = zip(*(axis.get_ylim() for axis in peers), strict=True)
                # A margin below zero would show shares and counts that cannot be.
                negative = any(axis.dataLim.y0 < 0 for axis in peers)
                for axis in peers:
                    axis.set_ylim(min(low) if negative else 0, max(high))
            legend(figure, flat[0])
            note = f"{self.results[0].measure!r} · {self.data.attrs['interval']}; dotted: null"
            headline(figure, note)
        return figure

    def _panel(self, axis: Any, name: str, where: dict[Any, Any]) -> None:
        """Draw every model's value in one panel, as a line over depth or as a marker for a single number."""
        for i, model in enumerate(map(str, self.data["model"].values)):
            part = replace(self, data=self.data.sel(where | {"model": model}))
            if "depth" in part[name].dims:
                band(axis, part, name, "depth", series=i, label=model)
                axis.set_xlabel("relative depth")
                continue
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            axis.plot([i, i], [part[f"{name}_low"], part[f"{name}_high"]], color=colour)
            axis.plot(i, part[name], marker, color=colour, label=model)
            if f"{name}_null" in part.data:
                axis.plot([i - 0.3, i + 0.3], [part[f"{name}_null"]] * 2, color=colour, ls=":")
            axis.set(xticks=[], xlim=(-0.7, max(i, 1) + 0.7))
        axis.set_title(" → ".join([name, *map(str, where.values())]))
        axis.set_ylabel(self.data[name].attrs.get("units", ""))

    def save_figure(self, path: str | Path, *values: str, **size: Any) -> Path:
        """Draw the figure and write it to a file.

        Args:
            path (str or Path): The file; its suffix .svg, .pdf or .png selects the format.
            *values (str): Names of the values to draw; by default all.
            **size: The size and the axes, as for `plot`.
        """
        return save(self.plot(*values, **size), Path(path))

    def __repr__(self) -> str:
        models, about = ", ".join(map(str, self.data["model"].values)), self.data.attrs
        head = f"<floatscope.Comparison {self.results[0].measure!r}: {models}"
        lines = (head, ", ".join(self.values), about["interval"], f"left out: {about['left_out']}>")
        return "\n  ".join(lines)


def _panels(array: xr.DataArray) -> list[dict[Any, Any]]:
    """Return the selection of each panel: one panel per category, or none if there are too many categories.

    Categories are the labels of the only dimension besides model and depth. A value without such a dimension
    has one panel.
    """
    category_dims = [d for d in array.dims if d not in ("model", "depth")]
    if not category_dims:
        return [{}]
    labels = array.dropna(category_dims[0], how="all")[category_dims[0]].values
    return (
        [{category_dims[0]: x} for x in labels]
        if len(category_dims) == 1 and 0 < len(labels) <= _PANELS
        else []
    )


def compare(
    *results: Result, paired: bool = False, labels: Sequence[str] | None = None
) -> Comparison:
    """Compare two or more results of one measure with the same configuration.

    Models may differ in their number of layers. Values are then interpolated onto the relative depths of the
    model with the fewest layers; the relative depth is 0 at the first kept layer and 1 at the last. Heads of
    different models do not correspond, so means over heads are compared.

    Args:
        *results (Result): Two or more results. Each difference is the first result minus one of the other
            results.
        paired (bool): Whether examples are paired by prompt (`Trace.prompt`, or the question ids of a run)
            and intervals are computed from the differences of the pairs. Prompts that a result lacks are left
            out and counted. By default, the examples of each model are independent samples.
        labels (sequence of str): A name for each result; by default the models' names.

    Returns:
        Means, differences and intervals, without a verdict. The attribute `left_out` of its data lists the
            values and examples that could not be compared.

    Raises:
        UsageError: If the results have different measures or settings, or if a prompt occurs twice in a
            result that is to be paired.
    """
    _check(results)
    names, first = _labels(results, labels), results[0]
    models, left_out = [r.model for r in results], list[str]()
    examples = _paired(results, left_out) if paired else [r.examples for r in results]
    joined, value_names = xr.Dataset(), []
    for name in dict.fromkeys(v for r in results for v in r.values):
        if not all(name in r.values and name in r.examples for r in results):
            left_out.append(f"{name}: not in all results, or not a mean over examples")
            continue
        null = f"{name}_null" if all(f"{name}_null" in e for e in examples) else None
        comparable = aligned(
            [e[[name, null] if null else [name]] for e in examples], name, models, left_out
        )
        if comparable is None:
            continue
        value_names.append(name)
        parts = [dataset[name].transpose("example", ...) for dataset in comparable]
        bounds = [bounds_of(p, r.data[name].attrs) for p, r in zip(parts, results, strict=True)]
        intervals = [
            mean(p.values, bounds=b, smooth=True) for p, b in zip(parts, bounds, strict=True)
        ]
        common = bounds[0] if len(set(bounds)) == 1 else None
        gap = difference if paired else independent
        differences = [
            gap(parts[0].values, p.values, bounds=common, smooth=True) for p in parts[1:]
        ]
        variables = {}
        for i, end in enumerate(("", "_low", "_high")):
            variables[name + end] = "model", [interval[i] for interval in intervals]
            variables[f"{name}_difference{end}"] = (
                "versus",
                [interval[i] for interval in differences],
            )
        if null:
            nulls_by_cell = [
                dataset[null].broadcast_like(part)
                for dataset, part in zip(comparable, parts, strict=True)
            ]
            nulls = [
                x.transpose(*parts[0].dims).astype(float).mean("example") for x in nulls_by_cell
            ]
            variables[null] = "model", [x.values for x in nulls]
        units = {"units": str(first.data[name].attrs.get("units", ""))}
        for value, (along, arrays) in variables.items():
            dims = (along, *parts[0].dims[1:])
            coords: dict[Any, Any] = {d: parts[0][d] for d in dims[1:] if d in parts[0].coords}
            coords[along] = names if along == "model" else names[1:]
            joined[value] = xr.DataArray(np.stack(arrays), coords, dims, attrs=units)
    joined.attrs = {
        "measure": repr(first.measure),
        "n": [e.sizes["example"] for e in examples],
        "interval": f"95 % intervals, differences {'paired' if paired else 'from independent samples'}",
        "left_out": "; ".join(dict.fromkeys(left_out)) or "nothing",
    }
    return Comparison(joined, tuple(results), value_names)


def _check(results: Sequence[Result]) -> None:
    for result in results:
        if not isinstance(result, Result):
            remedy = "Write fs.compare(measure(traces), measure(other_traces))."
            raise UsageError(f"compare takes results, not {result!r:.80}", remedy)
    if len(results) < 2:
        raise UsageError(f"{len(results)} result to compare", "Give two or more.")
    first = results[0].measure
    for other in (r.measure for r in results[1:]):
        if type(other) is not type(first):
            problem = f"different measures: {type(first).__name__} and {type(other).__name__}"
            raise UsageError(problem, "Compare results of one measure.")
        differ = [f.name for f in fields(first) if getattr(first, f.name) != getattr(other, f.name)]
        if differ:
            problem = f"{type(first).__name__} was configured differently: {', '.join(differ)}"
            raise UsageError(problem, "A comparison needs the same settings for every model.")


def _paired(results: Sequence[Result], left_out: list[str]) -> list[xr.Dataset]:
    """Return each result's values for the examples that all results share, in the same order.

    The function appends the numbers of dropped examples to `left_out`.
    """
    for result in results:
        if "example" not in result.examples.coords:
            problem = (
                f"expected examples with ids, but a result of {result.model or 'a model'} has none"
            )
            remedy = "Measure traces, give result.examples a coordinate `example`, or paired=False."
            raise UsageError(problem, remedy)
    common, places = pair(*([str(i) for i in r.examples["example"].values] for r in results))
    for result in results:
        if result.n > len(common):
            left_out.append(f"{result.n - len(common)} of {result.n} examples of {result.model}")
    return [r.examples.isel(example=place) for r, place in zip(results, places, strict=True)]


def _labels(results: Sequence[Result], labels: Sequence[str] | None) -> list[str]:
    if labels is not None and len(set(labels)) != len(results):
        problem = f"{len(set(labels))} different labels for {len(results)} results"
        raise UsageError(problem, "Give one each.")
    names: list[str] = []
    for name in labels or [r.model or "model" for r in results]:
        names.append(name if name not in names else f"{name} ({len(names) + 1})")
    return names


def aligned(
    examples: list[xr.Dataset], name: str, models: Sequence[str], left_out: list[str]
) -> list[xr.Dataset] | None:
    """Return a value and its null in all results, with equal dimensions and coordinates; None if impossible.

    The function appends to `left_out` what cannot be compared, with the reason.
    """
    if len(set(models)) > 1 and any("head" in e[name].dims for e in examples):
        examples = [e.mean("head") for e in examples]
        left_out.append(f"{name}: heads (of different models; their mean is compared)")
    if any(set(e[name].dims) != set(examples[0][name].dims) for e in examples):
        left_out.append(f"{name}: different dimensions")
        return None
    for dim in [d for d in examples[0][name].dims if d not in ("example", "layer")]:
        labels = [list(e[dim].values) for e in examples]
        shared = [x for x in labels[0] if all(x in other for other in labels)]
        missing = dict.fromkeys(str(x) for other in labels for x in other if x not in shared)
        if missing:
            left_out.append(f"{name}: {dim} {', '.join(missing)}")
        if not shared:
            return None
        examples = [e.sel({dim: shared}) for e in examples]
    return _by_depth(examples) if "layer" in examples[0].dims else examples


def _by_depth(examples: list[xr.Dataset]) -> list[xr.Dataset]:
    """Replace layers by relative depth, and interpolate onto the depths of the model with fewest layers."""
    counts = [e.sizes["layer"] for e in examples]
    if min(counts) == 1 and max(counts) > 1:
        problem = f"layer counts {counts}: one layer has no relative depth"
        raise UsageError(problem, "Measure two layers or more.")
    by_depth = []
    for dataset in examples:
        layer = dataset["layer"].values.astype(float)
        depth = (layer - layer[0]) / max(layer[-1] - layer[0], 1)
        by_depth.append(dataset.rename(layer="depth").assign_coords(depth=depth))
    grid = min(by_depth, key=lambda dataset: dataset.sizes["depth"])["depth"].values
    return [_interpolated(dataset, grid) for dataset in by_depth]


def _interpolated(values: xr.Dataset, grid: np.ndarray) -> xr.Dataset:
    """Interpolate values linearly onto a grid of relative depths; NaN where a neighbouring layer is NaN."""
    depth = values["depth"].values
    if len(depth) == len(grid) and np.allclose(depth, grid):
        return values.assign_coords(depth=grid)
    at_layers = values.reindex(depth=grid)  # a layer at exactly this depth needs no neighbour
    return at_layers.combine_first(values.interp(depth=grid))


def by_example(a: xr.DataArray, b: xr.DataArray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of a and b for shared examples, in the order of a; None without shared examples.

    If an example is repeated, its values are averaged.
    """
    names = [np.array(list(map(str, array["example"].values))) for array in (a, b)]
    shared = [name for name in dict.fromkeys(names[0]) if name in set(names[1])]
    if not shared:
        return None
    first, second = (
        np.stack([array.isel(example=ids == name).mean("example").values for name in shared])
        for array, ids in zip((a, b), names, strict=True)
    )
    return first, second
