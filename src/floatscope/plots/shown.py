"""A figure that a notebook shows where it is a cell's last line, itself or its axes.

Ours belong to no window and not to pyplot, whose open figures are what a notebook looks for.
"""

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_DPI = 150  # of a screen: a column of a paper is 500 pixels wide


class ShownFigure(Figure):
    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
        return buffer.getvalue()


class ShownAxes(Axes):
    def _repr_png_(self) -> bytes | None:
        figure: Any = self.figure
        return figure._repr_png_() if isinstance(figure, ShownFigure) else None
