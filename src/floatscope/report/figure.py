"""Make a drawn SVG safe to embed in a page. It draws nothing.

Only elements, attributes and style properties that draw are kept. Scripts, handlers, style sheets (they
would affect the page) and references to anything outside the figure are dropped. Ids get a prefix, so that
two figures on a page do not collide.
"""

import re
import xml.etree.ElementTree as ET
from typing import NamedTuple

from markupsafe import Markup

ELEMENTS = frozenset(
    "svg g defs path rect circle ellipse line polyline polygon text tspan textPath use image clipPath "
    "mask pattern marker symbol linearGradient radialGradient stop".split()
)
_STYLES = frozenset(
    "fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-dasharray stroke-dashoffset "
    "stroke-linecap stroke-linejoin stroke-miterlimit opacity font font-family font-size font-style "
    "font-weight font-stretch font-variant text-anchor dominant-baseline letter-spacing white-space "
    "clip-path clip-rule mask color display visibility stop-color stop-opacity image-rendering "
    "shape-rendering text-rendering paint-order vector-effect marker-start marker-mid "
    "marker-end".split()
)
_ATTRIBUTES = _STYLES | frozenset(
    "id d x y x1 x2 y1 y2 cx cy r rx ry dx dy fx fy width height points transform rotate viewBox offset "
    "preserveAspectRatio gradientUnits gradientTransform spreadMethod clipPathUnits maskUnits "
    "maskContentUnits patternUnits patternContentUnits patternTransform markerWidth markerHeight "
    "markerUnits refX refY orient textLength lengthAdjust startOffset".split()
)
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")
_OWN = re.compile(r"url\(\s*['\"]?#([^'\")\s]+)['\"]?\s*\)")
_FETCHES = re.compile(
    r"(url|src|image|image-set|cross-fade|element)\s*\(|expression|javascript:", re.I
)
_LENGTH = re.compile(r"([0-9]+\.?[0-9]*)(pt|px|in|cm|mm)?")
_PIXELS = {"pt": 4 / 3, "px": 1.0, "in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4, None: 1.0}


class Inline(NamedTuple):
    """An <svg role="img"> element, and its width on paper in CSS pixels."""

    markup: Markup
    width: int


def inline(svg: str, prefix: str, alt: str) -> Inline:
    """Return the figure with `alt` as its name, scalable by the page with fixed proportions."""
    try:
        drawn = ET.fromstring(svg)
    except ET.ParseError as error:
        raise ValueError(f"not an SVG figure: {error}") from error
    root = _kept(drawn, prefix)
    if root is None or root.tag != "svg":
        raise ValueError(f"not an SVG figure: its root is {_name(drawn.tag)!r}")
    width = _width(root)
    # matplotlib says this in a style sheet
    root.attrib |= {"stroke-linejoin": "round", "role": "img", "aria-label": alt}
    return Inline(Markup(ET.tostring(root, encoding="unicode")), width)


def _kept(element: ET.Element, prefix: str) -> ET.Element | None:
    name = _name(element.tag)
    if name not in ELEMENTS:
        return None
    made = ET.Element(name)
    made.text, made.tail = element.text, element.tail
    for raw, text in element.attrib.items():
        attribute = _name(raw)
        if attribute == "href":
            text = _reference(text, name, prefix)
        elif attribute == "style":
            text = _style(text, prefix)
        elif attribute == "id":
            text = prefix + text
        elif attribute in _ATTRIBUTES:
            text = _value(text, prefix)
        else:
            continue
        if text:
            made.set(attribute, text)
    if name == "image" and "href" not in made.attrib:
        return None
    for child in element:
        below = _kept(child, prefix)
        if below is not None:
            made.append(below)
    return made


def _name(tag: object) -> str:
    """Return a tag's name without its namespace; comments and instructions have no name."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _reference(text: str, element: str, prefix: str) -> str:
    """Return a reference to a place in this figure or to an embedded picture; "" for anything else."""
    if text.startswith("#"):
        return f"#{prefix}{text[1:]}"
    return text if element == "image" and _IMAGE.fullmatch(text) else ""


def _value(text: str, prefix: str) -> str:
    """Add the figure's prefix to url(#…); return "" for any other url and for escapes."""
    if "\\" in text or "/*" in text:
        return ""
    if _FETCHES.search(_OWN.sub("", text)):
        return ""
    return _OWN.sub(lambda m: f"url(#{prefix}{m[1]})", text)


def _style(text: str, prefix: str) -> str:
    kept = []
    for declaration in text.split(";"):
        name, _, what = declaration.partition(":")
        what = _value(what.strip(), prefix)
        if name.strip().lower() in _STYLES and what:
            kept.append(f"{name.strip().lower()}: {what}")
    return "; ".join(kept)


def _width(root: ET.Element) -> int:
    """Remove width and height, and use them as the view box if the figure has none."""
    sizes = [_LENGTH.fullmatch(root.attrib.pop(side, "")) for side in ("width", "height")]
    wide, high = (float(m[1]) * _PIXELS[m[2]] if m else 0.0 for m in sizes)
    if wide and high:
        root.attrib.setdefault("viewBox", f"0 0 {wide:g} {high:g}")
    box = re.split(r"[\s,]+", root.get("viewBox", "").strip())
    return round(wide or (float(box[2]) if len(box) == 4 else 0.0) or 480)
