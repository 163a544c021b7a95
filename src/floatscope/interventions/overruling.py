"""Base classes of interventions that overrule the decision of a step.

An overruling changes the canvas and does not change the forwards. The canvas is changed after the step's
forward, so the forward of the next step is the first that sees the change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from torch import Tensor

from ..decode.loop import AnySampler, decode
from ..decode.samplers.autoregressive import Autoregressive
from ..decode.samplers.confidence import Confidence
from ..decode.state import State, prepared
from ..errors import ModelError, UsageError
from ..models import Model
from .base import ActiveIntervention, Intervention, probe_text


@dataclass(frozen=True)
class Overruling(Intervention):
    """Base class of interventions that set answer positions after a step, whatever that step decided."""

    def probes(self, model: Model) -> Sequence[Intervention]:
        """Return versions of the intervention, one of which must change the first step of any decoding.

        Args:
            model (Model): the model on which to try the intervention.
        """
        raise TypeError(f"{type(self).__name__} must define probes")

    def prove(self, model: Model) -> None:
        before = _first_step(model)
        for probe in self.probes(model):
            with probe.in_force(model):
                after = _first_step(model)
            if not np.array_equal(before, after):
                return
        raise ModelError(
            f"{self.describe()} does not change the first step of {model.name}",
            "The sampler may ignore interventions; use one of Floatscope's samplers.",
        )


class ActiveOverrule(ActiveIntervention):
    """An overruling in force. `count` is the number of positions changed in each prompt."""

    name = ""  # name of the count in the decoding's report

    def __init__(self, model: Model, step: int) -> None:
        super().__init__(model)
        self.step = step
        self.count: dict[int, int] = {}

    def begin(self, state: State) -> None:
        if state.step == 0 and not state.blind:
            self.count = {}

    def overrule(self, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
        if state.step != self.step:
            return canvas
        changed = self.changed(state, canvas)
        count = (changed != canvas).sum(-1).tolist()
        self.count = dict(zip(state.active, count, strict=True))
        return changed

    def changed(self, state: State, canvas: Int[Tensor, "b s"]) -> Int[Tensor, "b s"]:
        """Return a copy of the canvas after the step, with the intervention's changes."""
        raise TypeError(f"{type(self).__name__} must define changed")

    def report(self, prompt: int, steps: int) -> dict[str, float]:
        reached = self.step < steps  # a prompt that has ended remains in the batch, without effect
        return {self.name: float(self.count.get(prompt, 0) if reached else 0)}


def check_step(step: object, caller: str) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise UsageError(f"{caller}: step = {step!r}", "Count steps from 0.")


def _first_step(model: Model) -> np.ndarray:
    """Return the canvas after the first step of a short decoding of the random probe text."""
    sampler: AnySampler = Autoregressive(length=2, stop_at_eos=False)
    if model.is_diffusion:
        sampler = Confidence(length=2, steps=2, stop_at_eos=False)
    return decode(model, [prepared(model, probe_text(model))], sampler)[0].canvas[1]
