"""Figures that a notebook displays when the figure, or its axes, is the last line of a cell.

The figures are not registered with pyplot, where a notebook would look for open figures. They open no window.
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
