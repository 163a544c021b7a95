"""A measure: a dataclass whose fields are its configuration, from traces to a finding.

Subclasses give `compute(trace)`: a dataset of values for one example, `x` and, where there is one, its
`x_null`; what `of` needs beside values to join examples stands in its attributes, as JSON could hold
it. Everything else (many traces, intervals, lifts, tables, a plain figure) is done here, once. A value that
does not apply is NaN, never a guess; a statistic that was not kept is an error that says which.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import xarray as xr

from ..errors import UsageError
from ..plots import Figure, default_plot
from ..registry import MEASURES, Registry
from ..stats.anchors import Rule, ZScore
from ..trace import Trace
from ..trace.windows import require_global
from .result import Result, summarise


@dataclass(frozen=True)
class Measure:
    """One question asked of traces."""

    registry: ClassVar["Registry[type[Measure]]"] = MEASURES
    units: ClassVar[dict[str, str]] = {}  # value → unit, such as "share", "×", "positions"

    windows: ClassVar[bool] = False  # follows local layers, whose levels of chance are their own
    # About tokens that the network itself reveals: a control decodes by itself instead of reading the
    # trained network's canvases.
    own_tokens: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Every statistic that `compute` reads, by its name in `keep`; a study keeps no others.

        Name "head_mean" for what `mean_mass` and `mean_received` give, "mass" for single heads.
        """
        return ()

    @property
    def layerwise(self) -> bool:
        """Whether each layer is computed by itself, so that a large trace can be given in blocks."""
        return False

    def __call__(self, traces: Trace | Sequence[Trace]) -> Result:
        several = [traces] if isinstance(traces, Trace) else list(traces)
        for trace in several:
            if not isinstance(trace, Trace):
                raise UsageError(
                    f"{type(self).__name__} measures traces, not {type(trace).__name__}",
                    "Give what model.trace(...) returned.",
                )
        for dim in ("layer", "head"):
            if len({tuple(t.data[dim].values.tolist()) for t in several}) > 1:
                raise UsageError(
                    f"these traces kept different {dim}s", "Trace them all with the same choice."
                )
        models = {str(t.info["model"]) for t in several}
        if len(models) > 1:
            raise UsageError(
                f"traces of different models in one call: {', '.join(sorted(models))}",
                "Measure each model's traces apart and use compare(...).",
            )
        examples = [self.example(trace).assign_attrs(id=trace.prompt) for trace in several]
        return self.of(examples, next(iter(models), ""))

    def of(self, examples: Sequence[xr.Dataset], model: str) -> Result:
        """Make the finding from what `example` gave for each example, here or in another process."""
        return summarise(examples, self, model, self.units)

    def example(self, trace: Trace) -> xr.Dataset:
        """Compute the values of a trace, after checking that it can be asked of this one."""
        if not self.windows:
            require_global(trace.data, type(self).__name__)
        blocks = trace.layer_blocks() if self.layerwise else [trace]
        parts = [self.compute(block) for block in blocks]
        for part in parts:
            if not isinstance(part, xr.Dataset):
                raise UsageError(
                    f"{type(self).__name__}.compute gave a {type(part).__name__}, not an xarray Dataset",
                    'Return xr.Dataset({"value": array}), with "value_null" beside it where there is one.',
                )
        same: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
        return parts[0] if len(parts) == 1 else xr.concat(parts, "layer", join="exact", **same)

    def compute(self, trace: Trace) -> xr.Dataset:
        raise TypeError(f"{type(self).__name__} must define compute")

    def plot(self, result: Result) -> Figure:
        """Draw every value with its interval and null; a measure with more to show draws its own."""
        return default_plot(result)


@dataclass(frozen=True)
class AnchorMeasure(Measure):
    """A measure of the keys that a rule calls anchors."""

    rule: Rule = field(default_factory=ZScore)
    beside: ClassVar[tuple[str, ...]] = ()  # statistics that it reads beside those of its rule

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.beside, self.rule.needs)

    @property
    def layerwise(self) -> bool:
        return self.rule.per_head

    def anchors(self, trace: Trace, *, fallback: bool) -> tuple[xr.DataArray, xr.DataArray]:
        """Find anchors (step, layer[, head], key), and where the rule found one (step, layer[, head]).

        With `fallback` the key that receives most stands in where the rule finds none.
        """
        anchor = self.rule(trace)
        has_anchor = anchor.any("key")
        if fallback:
            received = trace.received if self.rule.per_head else trace.mean_received
            top = received.fillna(-1).argmax("key")
            position = xr.DataArray(range(anchor.sizes["key"]), dims="key")
            anchor = anchor | (~has_anchor & (position == top) & received.notnull())
        return anchor, has_anchor


def by_layer(values: xr.DataArray, *, keep: Sequence[str] = ("layer",)) -> xr.DataArray:
    """Average over everything else (steps, heads) where the value applies."""
    rest = [d for d in values.dims if d not in keep]
    mean = values.mean(rest)
    return mean.drop_vars([c for c in mean.coords if c not in mean.dims])


def keep_for(measures: Iterable[Measure]) -> frozenset[str]:
    """What to `keep` of traces that these measures will look at: all that they read, nothing else."""
    return frozenset(name for measure in measures for name in measure.needs)
