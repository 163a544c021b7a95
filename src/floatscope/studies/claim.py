"""Define claims, verdicts and numbers as data classes. The module `verdict` decides claims."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..stats.digits import ABSENT, digits
from ..stats.intervals import Sample

VERDICTS = ("holds", "refuted", "undecided", "not testable")
# Roles of a claim's numbers: what decides, and what it must exceed.
THETA, CONTROL = "theta", "control"
SHARES = ("%", "points")  # units of shares of 1, shown times 100


@dataclass(frozen=True)
class Number:
    """A value with its interval and its null.

    Args:
        label (str): What the value is, in a few words.
        value (float): The value.
        low (float): Lower end of the interval; None (by default) if there is no interval.
        high (float): Upper end of the interval; None (by default) if there is no interval.
        null (float): The null value; None (by default) if there is none.
        unit (str): "%": a share of 1, shown as a percentage; "points": a difference of shares; "×": a lift;
            any other text is shown as it is; "" by default.
        n (int): Number of independent examples; None by default.
        level (float): Level of the interval; 0.95 by default.
        sample (Sample): The values of the examples, from which `verdict.power` computes how many examples
            would decide; never written to a file; None by default.
        role (str): Role in a claim: THETA for the primary quantity, CONTROL for the same quantity of
            untrained weights, "" (by default) for a number that decides nothing.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    null: float | None = None
    unit: str = ""
    n: int | None = None
    level: float = 0.95  # of the interval
    # What it was computed from, to plan further examples; never written to a file.
    sample: Sample | None = field(default=None, repr=False, compare=False)
    # In a claim: THETA, CONTROL, or "" for a number that decides nothing.
    role: str = field(default="", compare=False)


@dataclass(frozen=True)
class Check:
    """A secondary test of a claim, which never decides it; `passed` is None if the test has no result."""

    label: str
    passed: bool | None


@dataclass(frozen=True)
class Variant:
    """The verdict that a claim would have under another rule or for another measured number."""

    choice: str
    verdict: str
    number: Number | None = None


@dataclass(frozen=True)
class Curve:
    """The verdict on a claim as a function of δ, the smallest effect that matters.

    `holds_to` and `refuted_from` are ends of the interval of the claim's quantity θ. A claim "θ is above δ"
    holds for every δ below `holds_to` and is refuted for every δ above `refuted_from`. A claim "θ is below δ"
    holds for every δ above `holds_to` and is refuted for every δ below `refuted_from`. `holds_to` is None if
    the claim holds for no δ, and `refuted_from` is None if the claim is refuted for no δ.
    """

    deltas: tuple[float, ...]
    verdicts: tuple[str, ...]  # one for each of `deltas`
    delta: float  # as it was registered
    unit: str
    above: bool  # the claim says that θ is above δ; else below
    holds_to: float | None
    refuted_from: float | None
    count: bool = False  # θ is a count: the claim also holds at `holds_to`


@dataclass(frozen=True)
class Claim:
    """A claim of a study with its verdict.

    Args:
        number (str): Number of the claim: "1", or "9a" if a sentence of the literature makes several claims.
        text (str): The claim, as a sentence without a full stop.
        verdict (str): "holds", "refuted", "undecided" or "not testable".
        sentence (str): What was measured.
        numbers (tuple of Number): The numbers behind the verdict, the primary quantity first.
        study (str): Name of the study.
        plain (str): The finding in one sentence without numbers; "" by default.
        why (str): The reason of the verdict, or what would allow one; "" by default.
        rule (str): The rule, as it was registered before the run; "" by default.
        checks (tuple of Check): Secondary tests; () by default.
        variants (tuple of Variant): The verdicts under other rules or for other numbers; () by default.
        curve (Curve): The verdict as a function of δ; None (by default) if the claim is not testable.
        family (str): Name of the family of claims that are judged together; "" by default.
        scope (str): The models and examples that the verdict is about; "" by default.
    """

    number: str  # "1", or "9a" if a sentence of the literature makes several claims
    text: str
    verdict: str
    sentence: str  # what was measured
    numbers: tuple[Number, ...]  # the primary quantity first
    study: str  # the study that decides it
    plain: str = ""  # the finding in one sentence without numbers
    why: str = ""  # the reason of the verdict, or what would allow one
    rule: str = ""  # as it was written down before the run
    checks: tuple[Check, ...] = ()
    variants: tuple[Variant, ...] = ()
    curve: Curve | None = None
    family: str = ""  # the claims that it is judged together with
    scope: str = ""  # the models and the examples that the verdict is about

    @property
    def theta(self) -> Number | None:
        """The primary quantity θ, which decides the claim; None if it was not measured."""
        return next((n for n in self.numbers if n.role == THETA), None)

    @property
    def control(self) -> Number | None:
        """The primary quantity for untrained weights; None if it was not measured."""
        return next((n for n in self.numbers if n.role == CONTROL), None)

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"expected a verdict of {', '.join(VERDICTS)}, got {self.verdict!r}")


def as_json(value: "Number | Claim") -> dict[str, Any]:
    """Return the fields of a number or a claim as a nested dict, without samples."""

    def drop_sample(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in items if key != "sample"}

    return asdict(value, dict_factory=drop_sample)


def format_number(number: Number) -> str:
    """Return a number as text: "98.0 % [96.0, 99.0] (null 0.300 %)"; a null of 0 or 1 is left out."""
    text = format_value(number.value, number.unit)
    if number.low is not None and number.high is not None and math.isfinite(number.low):
        low, high = (format_value(x, number.unit, bare=True) for x in (number.low, number.high))
        text += f" [{low}, {high}]"
    if number.null is not None and math.isfinite(number.null) and number.null not in (0.0, 1.0):
        text += f" (null {format_value(number.null, number.unit)})"
    return text


def describe_curve(curve: Curve) -> str:
    """Return two sentences: for which δ the claim holds or is refuted, and the registered δ."""
    before, after = ("below", "above") if curve.above else ("above", "below")
    before = "up to" if curve.count else before
    parts = []
    if curve.holds_to is not None:
        parts.append(f"holds for δ {before} {format_value(curve.holds_to, curve.unit)}")
    if curve.refuted_from is not None:
        parts.append(f"is refuted for δ {after} {format_value(curve.refuted_from, curve.unit)}")
    parts.append("is undecided otherwise" if parts else "is undecided for every δ")
    return f"The claim {', '.join(parts)}. Registered: δ = {format_value(curve.delta, curve.unit)}."


def format_value(value: float, unit: str = "", *, bare: bool = False) -> str:
    """Return a value with three significant digits and its unit, as text; counts are whole numbers.

    With `bare`, the unit is left out.
    """
    shown = digits(100 * value if unit in SHARES else value)
    if (unit == "layers" or unit.startswith("of ")) and float(value).is_integer():
        shown = f"{value:.0f}"
    if bare or shown == ABSENT or not unit:
        return shown
    if unit == "layers" and shown == "1":
        return "1 layer"
    return shown + ("×" if unit == "×" else f" {unit}")


def lies_above(number: Number | None, level: float | None) -> bool | None:
    """Return whether a number's whole interval is above `level`; None without an interval or a level."""
    if number is None or number.low is None or level is None or not math.isfinite(number.low):
        return None
    return number.low > level


def lies_below(number: Number | None, level: float | None) -> bool | None:
    """Return whether a number's whole interval is below `level`; None without an interval or a level."""
    if number is None or number.high is None or level is None or not math.isfinite(number.high):
        return None
    return number.high < level
