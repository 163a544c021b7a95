"""Autoregressive: the sampler of causal models. The decoding loop is in `decode/autoregressive.py`."""

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
    """Continue a text token by token, until an end token or `length` tokens.

    Args:
        length: largest number of tokens to generate, default 32.
        temperature: 0 (default) takes the arg-max; above 0 tokens are drawn from softmax(logits /
            temperature).
        seed: seed of the draws, a whole number from 0 to 2^63 − 1. Each prompt has its own stream.
        stop_at_eos: stop at the model's end tokens, True by default.
    """

    length: int = 32
    temperature: float = 0.0
    seed: int = 0
    stop_at_eos: bool = True
    registry: ClassVar[Registry[type]] = SAMPLERS

    @property
    def n_steps(self) -> int:
        """Largest number of steps: one per generated token."""
        return self.length

    def describe(self) -> str:
        """Return the settings as a Python call."""
        return described(self, always=("length",))

    def check(self, model: ModelFacts) -> None:
        """Raise UsageError for a diffusion model or invalid settings, before anything runs.

        Args:
            model (Model): the model to decode with.
        """
        if model.direction is not Direction.CAUSAL:
            raise UsageError(
                f"Autoregressive continues a text, and {model.name} fills masks",
                "Use Confidence(...) or another denoising sampler.",
            )
        self.check_fields()

    def check_fields(self) -> None:
        """Raise UsageError for settings that are invalid for every model."""
        if self.length < 1:
            raise UsageError(
                f"Autoregressive: length = {self.length}", "Generate at least one token."
            )
        if self.temperature < 0 or not math.isfinite(self.temperature):
            raise UsageError(f"Autoregressive: temperature = {self.temperature}", "Use 0 or more.")
        check_seed(self.seed)
