"""A claim and its verdict, and the numbers it rests on: plain values. `verdict` says how it is decided."""

import math
from dataclasses import dataclass

from ..stats.digits import ABSENT, digits

VERDICTS = ("holds", "refuted", "undecided", "not testable")
SHARES = ("%", "points")  # units of shares of 1, shown times 100


@dataclass(frozen=True)
class Number:
    """A value with its interval and null. unit "%": a share of 1; "points": a difference
    of shares; "×": a lift; else a word."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    null: float | None = None
    unit: str = ""
    n: int | None = None
    level: float = 0.95  # of the interval


@dataclass(frozen=True)
class Check:
    """A secondary test: shown beside the claim, and never deciding. None = could not be made."""

    label: str
    passed: bool | None


@dataclass(frozen=True)
class Variant:
    """The verdict that one other choice would have given."""

    choice: str
    verdict: str
    number: Number | None = None


@dataclass(frozen=True)
class Claim:
    """One line of the list that a report answers."""

    number: int
    text: str
    verdict: str
    sentence: str  # what was measured
    numbers: tuple[Number, ...]  # the primary quantity first
    study: str  # whose it is
    plain: str = ""  # the finding in one sentence without numbers
    why: str = ""  # which test decided, or what would
    rule: str = ""  # as it was written down before the run
    checks: tuple[Check, ...] = ()
    variants: tuple[Variant, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"expected a verdict of {', '.join(VERDICTS)}, got {self.verdict!r}")


def said(number: Number) -> str:
    """As a sentence has it: "98.0 % [96.0, 99.0] (null 0.300 %)"; a null of 0 or 1 goes without saying."""
    text = short(number.value, number.unit)
    if number.low is not None and number.high is not None and math.isfinite(number.low):
        low, high = (short(x, number.unit, bare=True) for x in (number.low, number.high))
        text += f" [{low}, {high}]"
    if number.null is not None and math.isfinite(number.null) and number.null not in (0.0, 1.0):
        text += f" (null {short(number.null, number.unit)})"
    return text


def short(value: float, unit: str = "", *, bare: bool = False) -> str:
    """Three significant digits with their unit."""
    shown = digits(100 * value if unit in SHARES else value)
    if bare or shown == ABSENT or not unit:
        return shown
    return shown + ("×" if unit == "×" else f" {unit}")


def above(number: Number | None, level: float | None) -> bool | None:
    """Does the whole interval lie above the level?"""
    if number is None or number.low is None or level is None or not math.isfinite(number.low):
        return None
    return number.low > level


def below(number: Number | None, level: float | None) -> bool | None:
    if number is None or number.high is None or level is None or not math.isfinite(number.high):
        return None
    return number.high < level
