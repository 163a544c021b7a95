"""How every figure looks: paper quality, readable in grey, by colour-blind readers and in print."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

# Okabe and Ito's palette; line styles and markers tell the same without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHARE_MAP = "viridis"  # from zero
LIFT_MAP = "RdBu_r"  # diverging, centred on 1, logarithmic

_DPI = 200  # of pixels in a file
UNTRAINED = "untrained"  # what a figure calls the control

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "floatscope",  # the same figure is the same file
    "pdf.fonttype": 42,
}


@runtime_checkable
class Labelled(Protocol):
    """A Result, or anything with values and their `_low`, `_high`, `_null` in a dataset."""

    data: "xr.Dataset"


@contextmanager
def panels(
    rows: int = 1, columns: int = 1, *, width: float = 3.3, height: float = 2.3
) -> Iterator[Any]:
    """`with panels(1, 2) as (figure, axes):`; axes is always a 2-d array. No window is opened."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)


def band(
    axis: Axes,
    result: Labelled,
    name: str,
    along: str,
    *,
    series: int = 0,
    label: str | None = None,
) -> None:
    """A value along a dimension with its interval as a band and its null as a thin dotted line.

    Where the result has a control, its mean is drawn lightly; the first on an axis is named.
    """
    x, data = result.data[along].values, result.data
    colour, line = COLOURS[series % len(COLOURS)], LINES[series % len(LINES)]
    axis.plot(x, data[name].values, color=colour, linestyle=line, label=label or name)
    low, high = data[f"{name}_low"].values, data[f"{name}_high"].values
    axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    if f"{name}_null" in data:
        null = data[f"{name}_null"].broadcast_like(data[name]).values
        axis.plot(x, null, color=colour, linestyle=":", linewidth=0.8)
    control = getattr(result, "control", None)
    if control is not None and name in control.data:
        named = UNTRAINED in axis.get_legend_handles_labels()[1]
        at, mean = control.data[along].values, control.data[name].values
        light: Any = {"linewidth": 0.7, "marker": "x", "markersize": 3, "alpha": 0.55}
        axis.plot(at, mean, color=colour, label=None if named else UNTRAINED, **light)
    axis.set_xlabel(along)


def save(figure: Figure, path: Path) -> Path:
    """By the ending: .svg, .pdf or .png; the same data gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backend_bases import get_registered_canvas_class

    undated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
    with rc_context(STYLE):
        if path.suffix not in undated:
            figure.savefig(path, dpi=_DPI)
            return path
        # `savefig` draws twice where a layout is to be found; drawing finds it by itself.
        kind, shown, dpi = path.suffix[1:], figure.canvas, figure.dpi
        figure.dpi = _DPI
        try:
            canvas: Any = get_registered_canvas_class(kind)(figure)
            getattr(canvas, f"print_{kind}")(path, metadata=undated[path.suffix])
        finally:
            figure.set_canvas(shown)
            figure.dpi = dpi
    return path
