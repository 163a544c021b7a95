"""q and k become statistics."""

from .capture import Capture, Rows, Scene, Seen
from .statistics import STATISTICS, Columns, Labels, Sums, View

__all__ = ["STATISTICS", "Capture", "Columns", "Labels", "Rows", "Scene", "Seen", "Sums", "View"]
