"""Draw a claim's verdict as a strip over δ, the smallest effect that matters.

A band shows for which δ the claim holds, is refuted or is undecided. A shape at each δ of a grid shows the
verdict at this δ. The only text is the ends of the scale and the registered δ. A sentence beside the strip
gives the same information (`claim.describe_curve`).
"""

from markupsafe import Markup

from ..studies.claim import Curve
from . import numbers

# Shapes in a box of 12: they tell the verdicts apart without colour.
SHAPES = {
    "holds": '<circle cx="6" cy="6" r="5" class="full"/>',
    "refuted": '<path d="M2 2 10 10M10 2 2 10" class="cross"/>',
    "undecided": '<circle cx="6" cy="6" r="4.5" class="ring"/>'
    '<path d="M6 1.5a4.5 4.5 0 0 0 0 9Z" class="full"/>',
    "not testable": '<circle cx="6" cy="6" r="4.5" class="ring" stroke-dasharray="2 1.5"/>',
}
_LEFT, _WIDTH = 3.0, 94.0  # percent of the drawing: a shape at an end stays inside


def strip(curve: Curve) -> Markup:
    """Return a verdict's curve over δ as an SVG that is as wide as its container."""
    low, high = min(curve.deltas), max(curve.deltas)

    def at(delta: float) -> float:
        return _LEFT + _WIDTH * min(1.0, max(0.0, (delta - low) / (high - low)))

    first, last = at(low), at(high)
    parts = [_band("undecided", first, last)]
    # Up to an end of the interval on one side, beyond the other end on the other side.
    below, above = ("holds", "refuted") if curve.above else ("refuted", "holds")
    ends = {"holds": curve.holds_to, "refuted": curve.refuted_from}
    if (end := ends[below]) is not None:
        parts.append(_band(below, first, at(end)))
    if (end := ends[above]) is not None:
        parts.append(_band(above, at(end), last))
    for delta, verdict in zip(curve.deltas, curve.verdicts, strict=True):
        box = Markup('<svg x="{:.2f}%" y="1" width="12" height="12" overflow="visible" ')
        box += Markup(
            'aria-hidden="true" class="shape is-{}"><g transform="translate(-6 0)">{}</g></svg>'
        )
        parts.append(box.format(at(delta), verdict, Markup(SHAPES[verdict])))
    tick = Markup('<line class="registered" x1="{0:.2f}%" x2="{0:.2f}%" y1="14" y2="29"/>')
    parts.append(tick.format(at(curve.delta)))
    label = Markup('<text x="{:.2f}%" y="40"{}>{}</text>')
    parts.append(label.format(first, "", numbers.short(low, curve.unit, bare=True)))
    parts.append(label.format(last, Markup(' class="end"'), numbers.short(high, curve.unit)))
    registered = f"δ = {numbers.short(curve.delta, curve.unit)}"
    parts.append(label.format(at(curve.delta), Markup(' class="middle"'), registered))
    opening = '<svg class="strip" width="100%" height="44" aria-hidden="true" focusable="false">'
    return Markup(opening) + Markup("").join(parts) + Markup("</svg>")


def _band(verdict: str, start: float, stop: float) -> Markup:
    band = Markup('<rect class="band is-{}" x="{:.2f}%" width="{:.2f}%" y="17" height="9"/>')
    return band.format(verdict, start, max(0.0, stop - start))
