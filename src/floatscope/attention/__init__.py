"""Compute attention statistics from q and k without the S×S matrix. README.md in this folder explains how."""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from . import backend
    from .capture import Capture
    from .captured import Captured, Layer, Rows
    from .forward import Forward
    from .shapes import Arrays, Labels, View

lazily(__name__)
