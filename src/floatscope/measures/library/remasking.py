"""Re-mask sensitivity: put a revealed token back to mask, and see how much else changes.

It needs the model, so it is a function of a model and its traces, and not in the list of measures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import xarray as xr

from ...plots import POSITIVE, Figure, lines
from ...trace import Trace
from ..base import Measure
from ..result import Result

if TYPE_CHECKING:
    from ...models import Model
    from ...models.select import Choice


@dataclass(frozen=True)
class Remasking(Measure):
    """What `remasking` found: the effect of one token on what is still masked, by step.

    - `moved`: total variation between the predictions at a masked position with and without the token,
      mean over masked positions and over revealed tokens
    - `flipped`: share of masked positions whose arg-max changes
    - `returned`: share of tokens that the model would put back itself; no null

    Null: a token of the prompt masked instead, drawn at random, as many at each step.
    """

    seed: int = 0
    units: ClassVar[dict[str, str]] = {
        "moved": "total variation",
        "flipped": "share",
        "returned": "share",
    }

    def plot(self, result: Result) -> Figure:
        return lines(
            result,
            ("predictions move (TV)", "moved", POSITIVE),
            ("arg-max changes", "flipped", POSITIVE),
            ("same token put back", "returned", POSITIVE),
            note=": one token re-masked (dotted: one of the prompt)",
            width=2.5,
        )


def remasking(
    model: "Model",
    traces: Trace | Sequence[Trace],
    *,
    steps: "Choice" = None,
    batch_size: int = 8,
    seed: int = 0,
) -> Result:
    """How much else changes if a revealed token is masked again, at chosen steps of a model's traces.

    A forward for each revealed position at each chosen step, and as many for the control, `batch_size` at a
    time. For the model that was traced, without interventions. `Remasking` says what the values are; a
    step without revealed or without masked positions is NaN.
    """
    from ...recording.remasked import remasked  # not where measures are only read

    several = [traces] if isinstance(traces, Trace) else list(traces)
    measure = Remasking(seed=seed)
    examples = []
    for trace in several:
        each = remasked(model, trace, steps, batch_size=batch_size, seed=seed)
        answer = each["region"] == "answer"
        values = {name: each[name].where(answer).mean("key") for name in measure.units}
        for name in ("moved", "flipped"):
            values[f"{name}_null"] = each[name].where(~answer).mean("key")
        example = xr.Dataset(values).drop_vars("region", errors="ignore")
        examples.append(example.astype(np.float64).assign_attrs(id=trace.prompt))
    return measure.summarise(examples, model.name)
