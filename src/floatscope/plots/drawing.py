"""How every figure looks, and how large it is: readable in grey, by colour-blind readers and in print.

A measure draws into `panels` and knows nothing of paper. Whoever asks for the figure says its size, the
points of its letters, or whose axes to use (`asked`); `panels` then stacks what does not fit side by
side, so that a figure is exactly as wide as it was asked to be. What a user sets in matplotlib's
rcParams counts before our own style.
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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHARE_MAP = "viridis"  # from zero
LIFT_MAP = "RdBu_r"  # diverging, centred on 1, logarithmic

# Where a legend covers no line: above the axes.
ABOVE: Any = {
    "loc": "lower left",
    "bbox_to_anchor": (0, 1),
    "borderpad": 0.2,
    "columnspacing": 0.8,
    "handlelength": 1.8,
}

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
class Asked:
    """What is asked of a figure: inches, points, or whose axes it is drawn into."""

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


_now: ContextVar[Asked | None] = ContextVar("asked", default=None)


@contextmanager
def asked(*, ax: Axes | Sequence[Axes] | None = None, **size: Any) -> Iterator[None]:
    """Everything drawn inside with `panels` has this size, these letters, or goes into these axes.
    What is left open is as an `asked` around this one says.

    `ax`: one Axes, or as many as the figure has panels. `size`: width and height in inches, font_size in
    points, and `panel`: of a figure with several, this one alone.
    """
    said = {key: value for key, value in size.items() if value is not None}
    if ax is not None:
        said["axes"] = tuple(np.atleast_1d(np.asarray(ax, object)).ravel())
    token = _now.set(replace(_now.get() or Asked(), **said))
    try:
        yield
    finally:
        _now.reset(token)


def style() -> Any:
    """Our style, but for what a user has set to something else than matplotlib does: then theirs.
    Points that were asked for come first."""
    from matplotlib import rcParams, rcParamsDefault

    ours = {key: v for key, v in STYLE.items() if rcParams[key] == rcParamsDefault[key]}
    want = _now.get()
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
    """`with panels(1, 2) as (figure, axes):`; axes is always a 2-d array. No window is opened.

    `count`: of a grid whose last row is not full; the rest of it is None. `width` and `height` are a
    panel's, in inches, where nobody asks for another size.
    """
    from matplotlib import rc_context

    from .shown import ShownAxes

    count = rows * columns if count is None else max(count, 1)
    with rc_context(style()):
        want = _now.get() or Asked()
        axes = np.full(rows * columns, None, object)
        if want.axes:
            axes[:count] = _of_user(count, want)
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


def _side_by_side(columns: int, width: float, whole: float) -> int:
    """How many panels stand beside each other: as many as are wide enough for their letters."""
    from matplotlib import rcParams

    least = min(width, _NARROW * rcParams["font.size"] / POINTS)
    return int(min(columns, max(1, whole // least)))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from .shown import ShownFigure

    figure = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _of_user(count: int, want: Asked) -> Any:
    """The user's axes; of one panel alone, the others are drawn where nobody sees them."""
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
    """Ticks are made when a figure is drawn, by then in another style: their size is written down."""
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
    """Labels longer than their axis, and titles that run into something, become two lines."""
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
        at = title.get_window_extent()
        ends = [other.x0 for other in boxes if other.x0 > box.x0 and other.y0 < at.y1]
        ends = [x for x in ends if x >= box.x1] if at.x1 > box.x1 else []
        for text, long in (
            (axis.yaxis.label, axis.yaxis.label.get_window_extent().height > 1.02 * box.height),
            (axis.xaxis.label, axis.xaxis.label.get_window_extent().width > 1.02 * box.width),
            (title, at.x1 > min([figure.bbox.x1, *ends])),
        ):
            if long:
                text.set_text(two_lines(text.get_text()))


def two_lines(text: str) -> str:
    """Broken where the longer half is shortest; one word, or what has lines already, stays as it is."""
    breaks = [m.end() for m in re.finditer(r"\s|(?<=\w)-(?=\w)", text)]
    if "\n" in text or not breaks:
        return text
    at = min(breaks, key=lambda i: max(i, len(text) - i))
    return f"{text[:at].rstrip()}\n{text[at:]}"


def headline(figure: Figure, text: str) -> None:
    """A line above the whole figure, or several where it is narrow; none above a user's own axes."""
    want = _now.get()
    if want is None or not want.axes:
        figure.suptitle(text, x=0.01, ha="left", parse_math=False)


def legend(figure: Figure, axis: Axes, where: str = "lower") -> None:
    """One legend for all panels, below or above them; in a user's own figure it stays in the first."""
    want = _now.get()
    if want is not None and want.axes:
        axis.legend()
        return
    handles, labels = axis.get_legend_handles_labels()
    longest = points(5) * (max(map(len, labels), default=0) + 7) / 72
    across = max(1, min(len(labels), int(figure.get_figwidth() // longest)))
    look: Any = {"fontsize": points(7), "loc": f"outside {where} left", "ncols": across}
    figure.legend(handles, labels, **look)


def points(size: float) -> float:
    """Letters that are `size` points where the others have 8, and in proportion elsewhere."""
    from matplotlib import rcParams

    return float(size * rcParams["font.size"] / POINTS)


def save(figure: Figure, path: Path, *, dpi: int = _DPI) -> Path:
    """By the ending: .svg, .pdf or .png; the same data gives the same bytes."""
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
