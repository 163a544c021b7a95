"""A Trace becomes a finding."""

from .absorption import Absorption
from .anchors import RULES, Excess, Robust, Rule, Share, ZScore
from .measure import Measure
from .result import Result

MEASURES: dict[str, type[Measure]] = {
    "absorption": Absorption,
}

__all__ = [
    "MEASURES",
    "RULES",
    "Absorption",
    "Excess",
    "Measure",
    "Result",
    "Robust",
    "Rule",
    "Share",
    "ZScore",
]
