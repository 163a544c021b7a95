"""A figure that a notebook shows where it is a cell's last line, itself or its axes; drawn in less time.

Ours belong to no window and not to pyplot, whose open figures are what a notebook looks for.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_DPI = 150  # of a screen: a column of a paper is 500 pixels wide
# What matplotlib works out several times for every look at axes, and would find the same.
_ABOUT_TICKS = ("_update_ticks", "_get_ticklabel_bboxes")


class ShownFigure(Figure):
    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
        return buffer.getvalue()


class ShownAxes(Axes):
    def _repr_png_(self) -> bytes | None:
        figure: Any = self.figure
        return figure._repr_png_() if isinstance(figure, ShownFigure) else None

    def get_tightbbox(self, *args: Any, **options: Any) -> Any:
        with self._ticks_stay():
            return super().get_tightbbox(*args, **options)

    def draw(self, *args: Any, **options: Any) -> None:
        with self._ticks_stay():
            super().draw(*args, **options)

    @contextmanager
    def _ticks_stay(self) -> Iterator[None]:
        """Ticks and their labels, once found, are as found until this ends."""
        axes = [self.xaxis, self.yaxis]
        if "_update_ticks" in vars(self.xaxis):  # they stay already
            yield
            return
        for axis in axes:
            for name in _ABOUT_TICKS:
                setattr(axis, name, _once(getattr(axis, name)))
        try:
            yield
        finally:
            for axis in axes:
                for name in _ABOUT_TICKS:
                    delattr(axis, name)


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    """The first answer, again, for the same ticks and the same renderer."""
    found: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def once(*args: Any) -> Any:
        same = tuple(map(id, args))
        if same not in found:
            found[same] = args, method(*args)  # what is kept keeps its id
        return found[same][1]

    return once
