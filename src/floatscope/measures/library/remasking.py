"""Re-mask sensitivity: mask a revealed token again, and measure how much the other predictions change.

It needs the model, so it is a function of a model and its traces, and is not in the list of measures.
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
    """The measure behind `remasking`: the effect of one token on the masked positions, by step.

    - `moved`: total variation between the predictions at a masked position with and without the token, mean
      over masked positions and over revealed tokens
    - `flipped`: share of masked positions whose arg-max changes
    - `returned`: share of tokens that the model would predict again; no null

    Null: a token of the prompt is masked instead, drawn at random, as many per step.

    Args:
        seed (int): Seed for drawing the tokens of the prompt.
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
    """Measure how much else changes if a revealed token is masked again, at chosen steps of a model's traces.

    Runs a forward for each revealed position at each chosen step, and as many for the control.

    Args:
        model (Model): The model that was traced, without interventions.
        traces (Trace or sequence of Trace): Its traces.
        steps (int, slice or sequence of int): The steps at which to mask; by default all.
        batch_size (int): Number of forwards computed together; 8 by default.
        seed (int): Seed for drawing the control's tokens; 0 by default.

    Returns:
        A result with the values `moved`, `flipped` and `returned` by step, which `Remasking` describes. A
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
