"""The base class of measures, which are dataclasses whose fields are their configuration.

A subclass defines `compute(trace)`, which returns a dataset of values for one example: for each value, `x`
and, if the value has a null, `x_null`. The base class adds coordinates, constant nulls, intervals, lifts,
tables and a default figure. A value that does not apply is NaN. If a trace lacks a statistic, the error names
the statistic.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from ..errors import UsageError
from ..plots import Figure, default_plot
from ..registry import MEASURES, Configured, Registry
from ..stats.anchors import Rule, ZScore
from ..trace import Trace
from ..trace.windows import require_global
from .result import Result, summarise

Values = xr.DataArray | xr.Variable


@dataclass(frozen=True)
class Measure(Configured):
    """Base class of all measures. An instance is called with a trace or a list of traces.

    The call returns a `Result`: the mean of each value over the examples, with its 95 % interval, its null
    and its lift. All traces must come from one model and keep the same layers and heads.

        result = fs.measures.Absorption()(traces)
        result.absorption, result.absorption_low, result.absorption_null
    """

    registry: ClassVar["Registry[type[Measure]]"] = MEASURES
    units: ClassVar[dict[str, str]] = {}  # value → unit, such as "share", "×", "positions"
    nulls: ClassVar[dict[str, float]] = {}  # value → its null, if it is a constant
    # whether local layers, with their own chance levels, are supported
    windows: ClassVar[bool] = False
    # Whether the measure requires tokens that the network itself reveals. A control then decodes instead of
    # reading the trained network's canvases.
    own_tokens: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the statistics that `compute` reads, as in `keep`; a study keeps only these.

        Use "head_mean" for `mean_mass` and `mean_received`, and "mass" for the values of single heads.
        """
        return ()

    @property
    def layerwise(self) -> bool:
        """Whether layers are computed independently, so that a large trace can be processed in blocks."""
        return False

    def __call__(self, traces: Trace | Sequence[Trace]) -> Result:
        trace_list = [traces] if isinstance(traces, Trace) else list(traces)
        for trace in trace_list:
            if not isinstance(trace, Trace):
                problem = f"{type(self).__name__} measures traces, not {type(trace).__name__}"
                raise UsageError(
                    problem, "Give a trace or a list of traces, as returned by model.trace(...)."
                )
        for dim in ("layer", "head"):
            if len({tuple(t.data[dim].values.tolist()) for t in trace_list}) > 1:
                problem = f"these traces kept different {dim}s"
                raise UsageError(problem, "Trace all prompts with the same choice.")
        models = {str(t.info["model"]) for t in trace_list}
        if len(models) > 1:
            problem = f"traces of different models in one call: {', '.join(sorted(models))}"
            raise UsageError(
                problem, "Measure each model's traces separately and use compare(...)."
            )
        examples = [self.example(trace).assign_attrs(id=trace.prompt) for trace in trace_list]
        return self.summarise(examples, next(iter(models), ""))

    def summarise(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Combine the values of all examples into a `Result`.

        Args:
            examples (sequence of xr.Dataset): The result of `example` for each trace, computed in this
                process or in another one.
            model (str): The model's name, for tables and figures.

        Returns:
            Means over the examples with intervals, nulls and lifts.
        """
        return summarise(examples, self, model, self.units)

    def example(self, trace: Trace) -> xr.Dataset:
        """Compute the values of one trace, with coordinates and constant nulls.

        Args:
            trace (Trace): The trace of one prompt.

        Returns:
            The dataset of `compute` with a coordinate for each of step, layer and head, and with the nulls
                of `nulls` as `<name>_null`.

        Raises:
            UsageError: If `compute` returned anything but numbers with the trace's dimensions, or if
                the trace has layers with local attention and the measure does not support them.
        """
        if not self.windows:
            require_global(trace.data, type(self).__name__)
        blocks = trace.layer_blocks() if self.layerwise else [trace]
        parts = [_labelled(self._computed(block), block) for block in blocks]
        concat_options: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
        data = (
            parts[0]
            if len(parts) == 1
            else xr.concat(parts, "layer", join="exact", **concat_options)
        )
        nulls = {name: data[name].variable for name in self.nulls if name in data}
        full = {n: xr.full_like(v, self.nulls[n], float) for n, v in nulls.items()}
        return data.assign({f"{name}_null": null for name, null in full.items()})

    def _computed(self, trace: Trace) -> xr.Dataset:
        values, prefix = self.compute(trace), f"{type(self).__name__}.compute gave"
        if not isinstance(values, xr.Dataset):
            remedy = 'Return xr.Dataset({"value": array}), with "value_null" if it has a null.'
            raise UsageError(f"{prefix} a {type(values).__name__}, not an xarray Dataset", remedy)
        for name, array in values.data_vars.items():
            if array.dtype.kind not in "biuf":
                problem = f"{prefix} {name!r} as {array.dtype}: expected numbers"
                raise UsageError(
                    problem, "Return numbers, with NaN where the value does not apply."
                )
            for dim in {"step", "layer", "head"} & {*array.dims} - {*array.coords}:
                if array.sizes[dim] != trace.data.sizes[dim]:
                    sizes = f"{array.sizes[dim]} {dim}s, but the trace has {trace.data.sizes[dim]}"
                    remedy = f"Give the dimension a coordinate, or another name than {dim!r}."
                    raise UsageError(f"{prefix} {name!r} for {sizes}", remedy)
            if "example" in array.dims:
                remedy = "Compute one example at a time; the measure combines the examples."
                raise UsageError(f"{prefix} {name!r} with a dimension 'example'", remedy)
        return values

    def compute(self, trace: Trace) -> xr.Dataset:
        """Compute the values of one trace; the dimensions step, layer and head need no coordinates."""
        raise TypeError(f"{type(self).__name__} must define compute")

    def plot(self, result: Result) -> Figure:
        """Draw every value with its interval and null. Subclasses may override this figure."""
        return default_plot(result)


@dataclass(frozen=True)
class AnchorMeasure(Measure):
    """Base class of measures of anchors, the keys that a rule selects.

    Args:
        rule (Rule): Decides which keys are anchors, from the attention that each key receives. The rule is
            applied to the mean over heads, or to every head if it has `per_head=True`. `ZScore()` by default.
    """

    rule: Rule = field(default_factory=ZScore)
    # statistics read in addition to that of the rule
    extra_statistics: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.extra_statistics, self.rule.needs)

    @property
    def layerwise(self) -> bool:
        return self.rule.per_head

    def anchors(self, trace: Trace, *, fallback: bool) -> tuple[xr.DataArray, xr.DataArray]:
        """Find the anchors of a trace with the measure's rule.

        Args:
            trace (Trace): The trace of one prompt.
            fallback (bool): Whether the key that receives most attention is used where the rule finds no
                anchor.

        Returns:
            Whether each key is an anchor, (step, layer[, head], key), and whether the rule found an anchor,
                (step, layer[, head]). The dimension head exists only for a rule with `per_head=True`.
        """
        anchor = self.rule(trace)
        has_anchor = anchor.any("key")
        if fallback:
            received = trace.received if self.rule.per_head else trace.mean_received
            top = received.fillna(-1).argmax("key")
            position = xr.DataArray(range(anchor.sizes["key"]), dims="key")
            anchor = anchor | (~has_anchor & (position == top) & received.notnull())
        return anchor, has_anchor


def _labelled(values: xr.Dataset, trace: Trace) -> xr.Dataset:
    bare = [d for d in ("step", "layer", "head") if d in values.dims and d not in values.coords]
    return values.assign_coords({dim: trace.data[dim].values for dim in bare})


def by_layer(values: Values, *, keep: Sequence[str] = ("layer",)) -> xr.Variable:
    """Average over all dimensions except those in `keep` (by default over steps and heads), ignoring NaN."""
    bare = values.variable if isinstance(values, xr.DataArray) else values
    return bare.mean([d for d in bare.dims if d not in keep])


def log_mean(ratio: xr.DataArray) -> xr.Variable:
    """Return the geometric mean of ratios by layer, so that ½ and 2 cancel; ratios of 0 are ignored."""
    logs = by_layer(xr.apply_ufunc(np.log, ratio.where(ratio > 0)))
    return logs.copy(data=np.exp(logs.values))


def keep_for(measures: Iterable[Measure]) -> frozenset[str]:
    """Return the names of statistics that the measures read, for the argument `keep` of `Model.trace`."""
    return frozenset(name for measure in measures for name in measure.needs)
