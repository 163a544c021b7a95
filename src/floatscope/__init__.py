"""Floatscope: an instrument for attention in masked diffusion language models."""

from .attention import STATISTICS
from .decode import (
    Autoregressive,
    Confidence,
    Decoding,
    Entropy,
    EntropyBound,
    Margin,
    PositionCalibrated,
    Random,
    Remask,
    Sampler,
    Threshold,
)
from .errors import CaptureError, FloatscopeError, ModelError, TraceError, UsageError
from .instrument import Model, load
from .prompt import Part, Prompt
from .trace import Trace

__all__ = [
    "STATISTICS",
    "Autoregressive",
    "CaptureError",
    "Confidence",
    "Decoding",
    "Entropy",
    "EntropyBound",
    "FloatscopeError",
    "Margin",
    "Model",
    "ModelError",
    "Part",
    "PositionCalibrated",
    "Prompt",
    "Random",
    "Remask",
    "Sampler",
    "Threshold",
    "Trace",
    "TraceError",
    "UsageError",
    "load",
]
