"""The style and the size of all figures: readable in grey, by colour-blind readers and in print.

A measure draws into `panels` without knowing the size of the figure. The caller sets the width, the font size
or the axes to draw into with `figure_size`. `panels` then stacks the panels that do not fit side by side, so
that a figure is exactly as wide as requested. A user's settings in matplotlib's rcParams take precedence over
this style.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

# Okabe and Ito's palette; line styles and markers tell the same without colour.
# Grey instead of its black, which a dark page would hide.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHARE_MAP = "viridis"  # from zero
LIFT_MAP = "RdBu_r"  # diverging, centred on 1, logarithmic

# Where a legend covers no line: above the axes.
_ABOVE: Any = {
    "loc": "lower left",
    "bbox_to_anchor": (0, 1),
    "borderpad": 0.2,
    "columnspacing": 0.8,
    "handlelength": 1.8,
}
_MARGIN = 45  # points of a panel's width beside its axes

POINTS = 8  # of letters, where nobody says otherwise
_DPI = 200  # of pixels in a file
_NARROW = 2.2  # inches that a panel needs for letters of 8 points
_FLAT = 0.58  # height over width of panels that stand above each other

STYLE: Any = {
    "font.size": POINTS,
    "axes.titlesize": "medium",
    "figure.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "floatscope",  # the same figure is the same file
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class RequestedSize:
    """The requested size of a figure: inches, points, or the axes to draw into."""

    width: float | None = None
    height: float | None = None
    font_size: float | None = None
    axes: tuple[Axes, ...] = ()
    panel: int | None = None

    def __post_init__(self) -> None:
        for name in ("width", "height", "font_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 100:
                unit = "points" if name == "font_size" else "inches"
                raise UsageError(f"{name} = {value}", f"Give {unit}, such as 8 or 3.3.")
        if self.panel is not None and len(self.axes) != 1:
            raise UsageError(
                f"panel={self.panel} without axes of its own", "Say where it goes: ax=…."
            )


_requested: ContextVar[RequestedSize | None] = ContextVar("requested", default=None)


@contextmanager
def figure_size(*, ax: Axes | Sequence[Axes] | None = None, **size: Any) -> Iterator[None]:
    """Set the size, the font size or the axes of all figures that `panels` draws in the `with` block.

    Settings that are not given keep the value of an enclosing `figure_size`.

        from floatscope.plots import figure_size

        with figure_size(width=3.3):
            figure = result.plot()

    Args:
        ax (Axes or sequence of Axes): Axes to draw into: one Axes, or one for each panel of the figure.
        **size: `width` and `height` of the figure in inches; `font_size` in points; `panel`, the index of
            the only panel to draw.
    """
    settings = {key: value for key, value in size.items() if value is not None}
    if ax is not None:
        settings["axes"] = tuple(np.atleast_1d(np.asarray(ax, object)).ravel())
    token = _requested.set(replace(_requested.get() or RequestedSize(), **settings))
    try:
        yield
    finally:
        _requested.reset(token)


def style() -> Any:
    """Return the settings of STYLE, except those that the user has changed from matplotlib's defaults.

    A font size set by `figure_size` takes precedence over STYLE and over the user's setting.
    """
    from matplotlib import rcParams, rcParamsDefault

    ours = {key: v for key, v in STYLE.items() if rcParams[key] == rcParamsDefault[key]}
    want = _requested.get()
    size = want and want.font_size
    return ours if size is None else ours | {"font.size": size}


@contextmanager
def panels(
    rows: int = 1,
    columns: int = 1,
    *,
    count: int | None = None,
    width: float = 3.3,
    height: float = 2.3,
) -> Iterator[Any]:
    """Create a figure with panels: `with panels(1, 2) as (figure, axes):`. No window is opened.

    Args:
        rows (int): Number of rows of the grid; 1 by default.
        columns (int): Number of columns of the grid; 1 by default. A narrow figure has fewer columns and more
            rows.
        count (int): Number of panels, if the last row is not full; the other entries of `axes` are None.
        width (float): Width of a panel in inches, if `figure_size` sets none; 3.3 by default.
        height (float): Height of a panel in inches, if `figure_size` sets none; 2.3 by default.

    Yields:
        The figure, and an array of axes with the shape (rows, columns).
    """
    from matplotlib import rc_context

    from .shown import ShownAxes

    count = rows * columns if count is None else max(count, 1)
    with rc_context(style()):
        want = _requested.get() or RequestedSize()
        axes = np.full(rows * columns, None, object)
        if want.axes:
            axes[:count] = _user_axes(count, want)
            yield want.axes[0].figure, axes.reshape(rows, columns)
            return
        across = columns
        if want.width is not None:
            across = _side_by_side(columns, width, want.width)
            if across < columns:
                height = min(height, max(_FLAT * want.width / across, 0.8 * height))
        down = -(-count // across)
        figure = _figure(want.width or width * columns, want.height or height * down)
        for i in range(count):
            axes[i] = figure.add_subplot(down, across, i + 1, axes_class=ShownAxes)
        yield figure, axes.reshape(rows, columns)
        _settle(figure)
        if want.width is not None or want.height is not None or want.font_size is not None:
            _break_long_lines(figure)


def _side_by_side(columns: int, width: float, available: float) -> int:
    """Return how many panels fit side by side with enough width for their text."""
    from matplotlib import rcParams

    least = min(width, _NARROW * rcParams["font.size"] / POINTS)
    return int(min(columns, max(1, available // least)))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from .shown import ShownFigure

    figure = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _user_axes(count: int, want: RequestedSize) -> Any:
    """Return the user's axes; with `panel`, the other panels get axes of a figure that is never shown."""
    if want.panel is not None:
        if not 0 <= want.panel < count:
            raise UsageError(
                f"no panel {want.panel} in this figure", f"It has {count}, counted from 0."
            )
        axes = _figure(3.3 * count, 2.3).subplots(1, count, squeeze=False)[0]
        axes[want.panel] = want.axes[0]
        return axes
    if len(want.axes) != count:
        raise UsageError(
            f"this figure has {count} panels, and {len(want.axes)} axes were given",
            f"Give {count} axes, or ax= and panel= of the one you want, counted from 0.",
        )
    return list(want.axes)


def _settle(figure: Figure) -> None:
    """Set the size of tick labels now, because ticks are created when the figure is drawn, without STYLE."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    x, y = (
        FontProperties(size=size).get_size_in_points()
        for size in (rcParams["xtick.labelsize"], rcParams["ytick.labelsize"])
    )
    for axis in figure.axes:
        axis.tick_params(axis="x", which="both", labelsize=x)
        axis.tick_params(axis="y", which="both", labelsize=y)


def _break_long_lines(figure: Figure) -> None:
    """Break labels longer than their axis, and titles that reach another panel or the edge, into lines."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.draw_without_rendering()  # finds the layout
        except UserWarning:
            width, height = figure.get_size_inches()
            raise UsageError(
                f"{width:g} × {height:g} in are too small for this figure's words",
                "Give a larger width= or height=, or a smaller font_size=.",
            ) from None
    above: Any = figure._suptitle  # type: ignore[attr-defined]
    if above is not None and (wide := above.get_window_extent()).x1 > figure.bbox.x1:
        letters = len(above.get_text()) * (figure.bbox.x1 - wide.x0) / wide.width
        above.set_text(fill(above.get_text(), max(int(0.95 * letters), 1)))
    boxes = [axis.get_window_extent() for axis in figure.axes]
    for axis, box in zip(figure.axes, boxes, strict=True):
        title: Any = axis._left_title  # type: ignore[attr-defined]
        extent = title.get_window_extent()
        ends = [other.x0 for other in boxes if other.x0 > box.x0 and other.y0 < extent.y1]
        ends = [x for x in ends if x >= box.x1] if extent.x1 > box.x1 else []
        for text, long in (
            (axis.yaxis.label, axis.yaxis.label.get_window_extent().height > 1.02 * box.height),
            (axis.xaxis.label, axis.xaxis.label.get_window_extent().width > 1.02 * box.width),
            (title, extent.x1 > min([figure.bbox.x1, *ends])),
        ):
            if long:
                text.set_text(two_lines(text.get_text()))


def two_lines(text: str) -> str:
    """Break a text in two at its middle; a single word, or text with line breaks, is returned unchanged."""
    breaks = [m.end() for m in re.finditer(r"\s|(?<=\w)-(?=\w)", text)]
    if "\n" in text or not breaks:
        return text
    position = min(breaks, key=lambda i: max(i, len(text) - i))
    return f"{text[:position].rstrip()}\n{text[position:]}"


def headline(figure: Figure, text: str) -> None:
    """Write a title above the whole figure, unless the user gave the axes.

    Args:
        figure (Figure): The figure.
        text (str): The title; it is broken into lines where the figure is narrow.
    """
    want = _requested.get()
    if want is None or not want.axes:
        figure.suptitle(text, x=0.01, ha="left", parse_math=False)


def legend(figure: Figure, axis: Axes, where: str = "lower") -> None:
    """Draw one legend for all panels, below or above them; inside `axis` if the user gave the axes.

    Args:
        figure (Figure): The figure.
        axis (Axes): The panel whose lines the legend names.
        where (str): "lower" (by default) or "upper": below or above the panels.
    """
    want = _requested.get()
    if want is not None and want.axes:
        axis.legend()
        return
    handles, labels = axis.get_legend_handles_labels()
    across = _side_by_side_labels(labels, figure.get_figwidth(), 7)
    options: Any = {"fontsize": points(7), "loc": f"outside {where} left", "ncols": across}
    figure.legend(handles, labels, **options)


def legend_above(axis: Axes, size: float = POINTS, **options: Any) -> None:
    """Draw a legend above a panel, with as many columns as fit into the panel's width.

    Args:
        axis (Axes): The panel.
        size (float): Font size in points, in a figure whose text has 8 points.
        **options: Arguments for matplotlib's `legend`, such as title and handlelength.
    """
    options = _ABOVE | options
    figure: Any = axis.get_figure(root=True)
    spec = axis.get_subplotspec()
    columns = 1 if spec is None else spec.get_gridspec().ncols
    room = figure.get_figwidth() / columns - points(_MARGIN) / 72
    labels = axis.get_legend_handles_labels()[1]
    across = _side_by_side_labels(labels, room, size, options["handlelength"])
    axis.legend(ncols=across, fontsize=points(size), **options)


def _side_by_side_labels(
    labels: Sequence[str], room: float, size: float, handle: float = 2.0
) -> int:
    """Return how many columns of a legend fit into `room` inches, without an empty last column."""
    longest = points(size) * (0.62 * max(map(len, labels), default=0) + handle + 2) / 72
    across = max(1, min(len(labels), int(room // longest)))
    rows = -(-len(labels) // across)
    return max(1, -(-len(labels) // max(rows, 1)))


def lift_ticks(bar: Any) -> None:
    """Label a logarithmic colour bar with plain numbers: 0.1, 1, 10; with more labels for a small range."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    span = bar.mappable.norm.vmax
    steps = (1,) if span >= 10 else (1, 1.5, 2, 3, 5, 7) if span < 3 else (1, 2, 5)
    bar.locator = FixedLocator([m * 10.0**e for e in range(-3, 3) for m in steps])
    bar.formatter = FuncFormatter(lambda x, _: f"{x:g}")
    bar.minorticks_off()
    bar.update_ticks()


def points(size: float) -> float:
    """Scale a font size to the current font size.

    Args:
        size (float): Font size in points, in a figure whose text has 8 points.

    Returns:
        The size in points in proportion to the current font size.
    """
    from matplotlib import rcParams

    return float(size * rcParams["font.size"] / POINTS)


def save(figure: Figure, path: Path, *, dpi: int = _DPI) -> Path:
    """Write a figure to a file; the same data gives the same bytes.

    Args:
        figure (Figure): The figure.
        path (Path): The file; its suffix .svg, .pdf or .png selects the format. Other suffixes are left to
            matplotlib.
        dpi (int): Resolution of pixels in dots per inch; 200 by default.

    Returns:
        The path.
    """
    from matplotlib import rc_context
    from matplotlib.backend_bases import get_registered_canvas_class

    undated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
    with rc_context(style()):
        if path.suffix not in undated:
            figure.savefig(path, dpi=dpi)
            return path
        # `savefig` draws twice where a layout is to be found; drawing finds it by itself.
        kind, shown, before = path.suffix[1:], figure.canvas, figure.dpi
        figure.dpi = dpi
        try:
            canvas: Any = get_registered_canvas_class(kind)(figure)
            getattr(canvas, f"print_{kind}")(path, metadata=undated[path.suffix])
        finally:
            figure.set_canvas(shown)
            figure.dpi = before
    return path
