"""Format numbers as plain text: three significant digits, units, intervals, n."""

from typing import SupportsFloat

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from ..stats.digits import ABSENT, digits
from ..studies import claim
from ..studies.claim import Number


def value(x: SupportsFloat | None, unit: str = "") -> str:
    """Format a value with its unit: a share as "7.31 %", a lift as "7.31×", other units after a space."""
    return ABSENT if x is None else claim.format_value(float(x), unit)


def interval(low: SupportsFloat | None, high: SupportsFloat | None, unit: str = "") -> str:
    """Format an interval as "[5.02, 9.38]", in percent for shares; "" without an interval."""
    ends = [
        ABSENT if x is None else claim.format_value(float(x), unit, bare=True) for x in (low, high)
    ]
    return "" if ABSENT in ends else f"[{ends[0]}, {ends[1]}]"


def count(n: int | None) -> str:
    """Format a number of examples as "n = 24"; "" if it is not known."""
    return "" if n is None else f"n = {n:,}"


def estimate(number: Number) -> str:
    """Format a number's value and interval as "7.31 % [5.02, 9.38]"."""
    between = interval(number.low, number.high, number.unit)
    return f"{value(number.value, number.unit)} {between}".rstrip()


def context(number: Number) -> str:
    """Format a number's null and n as "null 0.310 %, n = 24"."""
    null = "" if number.null is None else f"null {value(number.null, number.unit)}"
    return ", ".join(filter(None, [null, count(number.n)]))


def column(cells: pd.Series) -> tuple[list[str], bool]:
    """Return a table column's cells as text, and whether they are numbers.

    Numbers have three significant digits, except in columns of integers.
    """
    known = cells.dropna()
    if known.empty or is_bool_dtype(cells) or not is_numeric_dtype(cells):
        return [ABSENT if pd.isna(cell) else str(cell) for cell in cells], False
    whole = all(float(x).is_integer() and abs(x) < 2**53 for x in known)
    shown = [f"{x:.0f}".replace("-", "−") if whole and not pd.isna(x) else digits(x) for x in cells]
    return shown, True


def short(x: SupportsFloat, unit: str = "", *, bare: bool = False) -> str:
    """Format the end of a scale without trailing zeros: "0", "100 %", "2.5×"; `bare` drops the unit."""
    shown = claim.format_value(float(x), unit, bare=True)
    if "." in shown and "·" not in shown:
        shown = shown.rstrip("0").rstrip(".")
    return (
        shown if bare or shown == "0" or not unit else shown + (unit if unit == "×" else f" {unit}")
    )
