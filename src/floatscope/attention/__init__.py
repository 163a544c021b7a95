"""q and k become statistics."""

from .capture import Capture, Scene, Seen
from .statistics import STATISTICS, Columns, Sums, View

__all__ = ["STATISTICS", "Capture", "Columns", "Scene", "Seen", "Sums", "View"]
