"""Find the local layers of a trace, and how many positions their rows see to either side.

A model may have local layers, whose rows see only a window around their own position (ModernBERT). In traces
of such a model, `null`, `visible` and all chance levels have a value for each layer. For measures that do not
support such traces, `require_global` raises an error.
"""

from collections.abc import Mapping
from typing import Any

import xarray as xr

from ..errors import UsageError


def reaches(info: Mapping[str, Any], layers: int) -> list[int | None]:
    """Return how many positions a row sees to either side, for the first `layers` layers; None: all."""
    widths = [int(x) for x in info.get("reaches", [-1] * layers)]
    return [None if reach < 0 else reach for reach in widths[:layers]]


def is_local(data: xr.Dataset) -> bool:
    """Return whether the rows of any kept layer see only a window."""
    return "null" in data and "layer" in data["null"].dims


def require_global(data: xr.Dataset, measure: str) -> None:
    """Raise UsageError if a trace has local layers, for a measure with one chance level for all layers."""
    if not is_local(data):
        return
    global_layers = [int(x) for x in data["layer"].values if int(data.attrs["reaches"][int(x)]) < 0]
    problem = (
        f"{measure} has one chance level for all layers, but some of these layers see only a window"
    )
    raise UsageError(
        problem, f"Trace with layers={global_layers or [0]}, which see every position."
    )
