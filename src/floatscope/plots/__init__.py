"""Every figure: a trace as a heat map, a head's pattern, a measure's values with interval and null.

`drawing` says how a figure looks and how large it is; `results` draws what measures share. matplotlib is
imported when something is drawn.
"""

from .drawing import (
    ABOVE,
    COLOURS,
    LIFT_MAP,
    LINES,
    MARKERS,
    SHARE_MAP,
    STYLE,
    Axes,
    Figure,
    asked,
    headline,
    legend,
    panels,
    points,
    save,
    style,
)
from .results import (
    ANY,
    LOG,
    POSITIVE,
    SHARE,
    UNTRAINED,
    band,
    bands,
    default_plot,
    dots,
    grid,
    lines,
    log_scale,
    mark,
)

__all__ = [
    *("ABOVE", "COLOURS", "LIFT_MAP", "LINES", "MARKERS", "SHARE_MAP", "STYLE", "Axes", "Figure"),
    *("asked", "headline", "legend", "panels", "points", "save", "style"),
    *("ANY", "LOG", "POSITIVE", "SHARE", "UNTRAINED"),
    *("band", "bands", "default_plot", "dots", "grid", "lines", "log_scale", "mark"),
]
