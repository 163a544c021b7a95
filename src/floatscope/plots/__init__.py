"""All figures: a trace as a heat map, a head's pattern, a measure's values with intervals and nulls.

`drawing` defines the style and the size of figures. `results` contains the parts that the figures of several
measures share. matplotlib is imported when the first figure is drawn.
"""

from .drawing import (
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
    legend_above,
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
from .sharing import share_scales

__all__ = [
    *("COLOURS", "LIFT_MAP", "LINES", "MARKERS", "SHARE_MAP", "STYLE", "Axes", "Figure"),
    *("figure_size", "headline", "legend", "legend_above", "panels", "points", "save", "style"),
    *("ANY", "LOG", "POSITIVE", "SHARE", "UNTRAINED"),
    *(
        "band",
        "bands",
        "default_plot",
        "dots",
        "grid",
        "lines",
        "log_scale",
        "mark",
        "share_scales",
    ),
]
