"""Measures: each computes a `Result` from a trace or a list of traces."""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .base import Measure
    from .comparing import compare
    from .library import *
    from .library import MEASURES
    from .library.agreement import perturbation
    from .library.dormancy import switching
    from .library.remasking import remasking
    from .library.staleness import staleness
    from .result import Result

lazily(__name__)
