"""A Model fills a canvas, one step at a time."""

from .autoregressive import Autoregressive
from .confidence import Confidence
from .entropy import Entropy
from .entropy_bound import EntropyBound
from .loop import check_fits, decode
from .margin import Margin
from .position_calibrated import PositionCalibrated
from .random import Random
from .remask import Remask
from .sampler import Sampler
from .steps import Change, Decoding, State
from .threshold import Threshold

SAMPLERS: dict[str, type[Sampler] | type[Autoregressive]] = {
    "confidence": Confidence,
    "entropy": Entropy,
    "margin": Margin,
    "random": Random,
    "threshold": Threshold,
    "entropy-bound": EntropyBound,
    "position-calibrated": PositionCalibrated,
    "remask": Remask,
    "autoregressive": Autoregressive,
}

__all__ = [
    "SAMPLERS",
    "Autoregressive",
    "Change",
    "Confidence",
    "Decoding",
    "Entropy",
    "EntropyBound",
    "Margin",
    "PositionCalibrated",
    "Random",
    "Remask",
    "Sampler",
    "State",
    "Threshold",
    "check_fits",
    "decode",
]
