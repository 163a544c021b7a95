"""Draw a number as a small range: the interval as a bar, the value as a dot, the null as a tick.

The only text in a drawing is the two ends of the scale; the page shows the number beside the drawing. Numbers
of one claim with the same unit share a scale, so that they can be compared by eye. Scales of lifts are
logarithmic and include 1; all other scales are linear and include 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..studies.claim import Number
from . import numbers

_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_LEFT, _WIDTH = 2.0, 96.0  # percent of the drawing: a dot at an end stays inside

_UNSEEN = 0.005  # of the width
_SHORT = 16  # letters of a unit that fit under a drawing


@dataclass(frozen=True)
class Scale:
    """A horizontal scale from `low` on the left to `high` on the right."""

    low: float
    high: float
    unit: str

    def at(self, x: float) -> float:
        """Return the horizontal position of a value in percent of the width, clipped to the scale."""
        low, high = self.low, self.high
        if self.unit == "×":
            x, low, high = (math.log(max(v, 1e-300)) for v in (x, low, high))
        return _LEFT + _WIDTH * min(1.0, max(0.0, (x - low) / (high - low)))


def drawings(several: Sequence[Number]) -> list[Markup]:
    """Return a drawing of each number; below the last number of each unit, it has the ends of the scale."""
    units = [number.unit for number in several]
    scales = {unit: _scale([n for n in several if n.unit == unit], unit) for unit in units}
    return [
        _draw(number, scales[number.unit], ends=units[i + 1 : i + 2] != [number.unit])
        for i, number in enumerate(several)
    ]


def _scale(several: Iterable[Number], unit: str) -> Scale:
    known = [x for n in several for x in (n.value, n.low, n.high, n.null) if _finite(x)]
    values = [float(x) for x in known if x is not None]
    if unit == "×":
        values = [v for v in values if v > 0] + [1.0]
        low, high = _floor(min(values)), _ceiling(max(values))
        return Scale(low, high, unit) if high > low else Scale(0.5, 2.0, unit)
    if unit.startswith("of "):  # a count out of so many
        return Scale(0.0, float(unit.removeprefix("of ")), unit)
    low, high = min([0.0, *values]), max([0.0, *values])
    # An end too near to zero to be seen is zero, and its label is no longer than the drawing.
    low, high = (0.0 if abs(x) < _UNSEEN * (high - low) else x for x in (low, high))
    if unit == "%" and high <= 1:
        low = -_ceiling(-low) if low < 0 else 0.0
        return Scale(low, min(1.0, _ceiling(high)) if high > 0 else 1.0, unit)
    low, high = (-_ceiling(-low) if low < 0 else 0.0), (_ceiling(high) if high > 0 else 0.0)
    return Scale(low, high, unit) if high > low else Scale(0.0, 1.0, unit)


def _ceiling(x: float) -> float:
    """Return the smallest round number that is not below x: 0.87 → 1, 13 → 15, 0.0031 → 0.004."""
    power = 10.0 ** math.floor(math.log10(x))
    return next((s * power for s in _STEPS if s * power >= x * (1 - 1e-9)), 10 * power)


def _floor(x: float) -> float:
    power = 10.0 ** math.floor(math.log10(x))
    return next((s * power for s in reversed(_STEPS) if s * power <= x * (1 + 1e-9)), power)


def _draw(number: Number, scale: Scale, *, ends: bool) -> Markup:
    height = 30 if ends else 18
    parts = [Markup('<line class="axis" x1="{}%" x2="{}%" y1="9" y2="9"/>').format(2, 98)]
    if scale.low < 0 < scale.high or (scale.low < 1 < scale.high and scale.unit == "×"):
        x = _at(scale, 1.0 if scale.unit == "×" else 0.0)
        parts.append(Markup('<line class="zero" x1="{0}%" x2="{0}%" y1="4" y2="14"/>').format(x))
    if _finite(number.low) and _finite(number.high):
        low, high = _at(scale, number.low), _at(scale, number.high)
        bar = '<line class="between" x1="{}%" x2="{}%" y1="9" y2="9"/>'
        parts.append(Markup(bar).format(low, high))
    if _finite(number.null):
        x = _at(scale, number.null)
        parts.append(Markup('<line class="null" x1="{0}%" x2="{0}%" y1="1" y2="17"/>').format(x))
    if _finite(number.value):
        x = _at(scale, number.value)
        parts.append(Markup('<circle class="value" cx="{}%" cy="9" r="4"/>').format(x))
    if ends:
        unit = scale.unit if len(scale.unit) <= _SHORT else ""  # it stands beside the number too
        # The unit stands once, at the high end, so that the two do not touch; zero has none.
        low = numbers.short(scale.low, unit, bare=scale.high != 0)
        high = numbers.short(scale.high, unit)
        parts.append(Markup('<text x="1%" y="27">{}</text>').format(low))
        parts.append(Markup('<text x="99%" y="27" class="end">{}</text>').format(high))
    opening = '<svg class="range" width="100%" height="{}" aria-hidden="true" focusable="false">'
    return Markup(opening).format(height) + Markup("").join(parts) + Markup("</svg>")


def _at(scale: Scale, x: float | None) -> str:
    return f"{scale.at(0.0 if x is None else float(x)):.2f}"


def _finite(x: float | None) -> bool:
    return x is not None and math.isfinite(float(x))
