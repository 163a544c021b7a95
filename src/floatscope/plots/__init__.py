"""All figures: a trace as a heat map, a head's pattern, a measure's values with intervals and nulls.

`drawing` defines the style and the size of figures; `results` draws what measures share. matplotlib is
imported when the first figure is drawn.
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
    figure_size,
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
    *("figure_size", "headline", "legend", "panels", "points", "save", "style"),
    *("ANY", "LOG", "POSITIVE", "SHARE", "UNTRAINED"),
    *("band", "bands", "default_plot", "dots", "grid", "lines", "log_scale", "mark"),
]
