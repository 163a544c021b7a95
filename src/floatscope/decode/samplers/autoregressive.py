"""Autoregressive: how a causal model continues a text. Its loop is `decode/autoregressive.py`."""

import math
from dataclasses import dataclass
from typing import ClassVar

from ...errors import UsageError
from ...registry import SAMPLERS, Configured, Registry, described
from ...sequences.direction import Direction
from ...sequences.vocabulary import ModelFacts
from ..draw import check_seed


@dataclass(frozen=True)
class Autoregressive(Configured):
    """Greedy, or sampled at a temperature; ends at an end token or after `length` tokens."""

    length: int = 32
    temperature: float = 0.0
    seed: int = 0
    stop_at_eos: bool = True
    registry: ClassVar[Registry[type]] = SAMPLERS

    @property
    def n_steps(self) -> int:
        return self.length

    def describe(self) -> str:
        return described(self, always=("length",))

    def check(self, model: ModelFacts) -> None:
        if model.direction is not Direction.CAUSAL:
            raise UsageError(
                f"Autoregressive continues a text, and {model.name} fills masks",
                "Use Confidence(...) or another denoising sampler.",
            )
        self.check_fields()

    def check_fields(self) -> None:
        """The part of it that no model is needed for."""
        if self.length < 1:
            raise UsageError(
                f"Autoregressive: length = {self.length}", "Generate at least one token."
            )
        if self.temperature < 0 or not math.isfinite(self.temperature):
            raise UsageError(f"Autoregressive: temperature = {self.temperature}", "Use 0 or more.")
        check_seed(self.seed)
