"""A measure: a dataclass whose fields are its configuration, from traces to a finding.

Subclasses give `compute(trace)`: a dataset of values for one example, `x` and, where there is one, its
`x_null`; what `of` needs beside values to join examples stands in its attributes, as JSON could hold
it. Everything else (many traces, intervals, lifts, tables, a plain figure) is done here, once. A value that
does not apply is NaN, never a guess; a statistic that was not kept is an error that says which.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import xarray as xr

from ..errors import UsageError
from ..registry import Registry
from ..trace import Trace
from ..trace.windows import require_global
from .default_plot import default_plot
from .result import Result, summarise
from .style import Figure

MEASURES: "Registry[type[Measure]]" = Registry("measure", "floatscope.measures.library")


@dataclass(frozen=True)
class Measure:
    """One question asked of traces."""

    registry: ClassVar["Registry[type[Measure]]"] = MEASURES
    units: ClassVar[dict[str, str]] = {}  # value → unit, such as "share", "×", "positions"
    needs: ClassVar[tuple[str, ...]] = ()  # statistics that a trace keeps only where they are named

    windows: ClassVar[bool] = False  # follows local layers, whose levels of chance are their own
    # About tokens that the network itself reveals: a control decodes by itself instead of reading the
    # trained network's canvases.
    own_tokens: ClassVar[bool] = False

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
        """The finding from what `compute` gave for each example, here or in another process."""
        return summarise(examples, self, model, self.units)

    def example(self, trace: Trace) -> xr.Dataset:
        """`compute`, of a trace that it can be asked of."""
        if not self.windows:
            require_global(trace.data, type(self).__name__)
        return self.compute(trace)

    def compute(self, trace: Trace) -> xr.Dataset:
        raise TypeError(f"{type(self).__name__} must define compute")

    def plot(self, result: Result) -> Figure:
        """Every value with its interval and null; a measure with more to show draws its own."""
        return default_plot(result)


def keep_for(measures: Iterable[Measure]) -> frozenset[str] | None:
    """What to `keep` of traces that these measures will look at; None where the default will do."""
    needed = frozenset(name for measure in measures for name in measure.needs)
    if not needed:
        return None
    from ..recording.options import TraceOptions  # not where traces are only read

    return TraceOptions().kept | needed
