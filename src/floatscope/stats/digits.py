"""Format numbers with three significant digits, in tables, figures and pages alike."""

import math
from typing import SupportsFloat

ABSENT = "–"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def digits(x: SupportsFloat | None) -> str:
    """Format a number with three significant digits: 0.0731, 7.31, 731, 73,100; "–" for None or NaN."""
    number = math.nan if x is None else float(x)
    if math.isnan(number):
        return ABSENT
    sign = "−" if number < 0 else ""
    size = abs(number)
    if math.isinf(size):
        return f"{sign}∞"
    if size == 0:
        return "0"
    mantissa, _, power = f"{size:.2e}".partition("e")
    exponent = int(power)
    if not -4 <= exponent < 9:
        return f"{sign}{mantissa}·10{str(exponent).translate(_SUPERSCRIPT)}"
    rounded = float(f"{mantissa}e{power}")
    return f"{sign}{rounded:,.{max(0, 2 - exponent)}f}"


def estimate(
    value: SupportsFloat | None, low: SupportsFloat | None, high: SupportsFloat | None
) -> str:
    """Format a value with its interval: "7.31 [5.02, 9.38]"; without an interval, the value alone."""
    ends = [digits(low), digits(high)]
    return digits(value) if ABSENT in ends else f"{digits(value)} [{ends[0]}, {ends[1]}]"
