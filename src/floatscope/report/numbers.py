"""Format numbers for readers: three significant digits, units, intervals, n. Text, never markup."""

import math
from collections.abc import Sequence
from typing import SupportsFloat

from ..stats.digits import ABSENT, digits
from ..studies import claim
from ..studies.claim import Number


def value(x: SupportsFloat | None, unit: str = "") -> str:
    """Format a value with its unit: a share as "7.31 %", a lift as "7.31×", other units after a space."""
    return ABSENT if x is None else claim.short(float(x), unit)


def interval(low: SupportsFloat | None, high: SupportsFloat | None, unit: str = "") -> str:
    """Format an interval as "[5.02, 9.38]" in the value's unit; "" without an interval."""
    ends = [ABSENT if x is None else claim.short(float(x), unit, bare=True) for x in (low, high)]
    return "" if ABSENT in ends else f"[{ends[0]}, {ends[1]}]"


def count(n: int | None) -> str:
    """Format n as "n = 24"; "" if n is not known."""
    return "" if n is None else f"n = {n:,}"


def estimate(number: Number) -> str:
    """Format the value and its interval: "7.31 % [5.02, 9.38]"."""
    between = interval(number.low, number.high, number.unit)
    return f"{value(number.value, number.unit)} {between}".rstrip()


def context(number: Number) -> str:
    """Format what the value is compared with: "null 0.310 %, n = 24"."""
    null = "" if number.null is None else f"null {value(number.null, number.unit)}"
    return ", ".join(filter(None, [null, count(number.n)]))


def number(number: Number) -> str:
    """Format a number completely: "7.31 % [5.02, 9.38], null 0.310 %, n = 24"."""
    return ", ".join(filter(None, [estimate(number), context(number)]))


def column(cells: Sequence[object]) -> tuple[list[str], bool]:
    """Format a table's column, and say whether it holds numbers: integers, or three digits."""
    numbers = [_exact(x) for x in cells]
    known = [x for x in numbers if x is not None and not math.isnan(x)]
    if not known or any(x is None and c is not None for x, c in zip(numbers, cells, strict=True)):
        return [ABSENT if _missing(c) else str(c) for c in cells], False
    whole = all(x.is_integer() and abs(x) < 2**53 for x in known)
    shown = [
        f"{x:.0f}".replace("-", "−") if whole and x is not None and not math.isnan(x) else digits(x)
        for x in numbers
    ]
    return shown, True


def _exact(x: object) -> float | None:
    """Return a number as a float; None for truth values and words."""
    if isinstance(x, str | bytes) or "bool" in type(x).__name__ or not isinstance(x, SupportsFloat):
        return None
    try:
        return float(x)
    except (TypeError, ValueError, OverflowError):
        return None


def _missing(x: object) -> bool:
    exact = _exact(x)
    return x is None or (exact is not None and math.isnan(exact))


def short(x: SupportsFloat, unit: str = "", *, bare: bool = False) -> str:
    """Format the end of a scale without superfluous digits: "0", "100 %", "2.5×"; `bare` drops the unit."""
    shown = claim.short(float(x), unit, bare=True)
    if "." in shown and "·" not in shown:
        shown = shown.rstrip("0").rstrip(".")
    return (
        shown if bare or shown == "0" or not unit else shown + (unit if unit == "×" else f" {unit}")
    )
