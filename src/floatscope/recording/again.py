"""A step of a trace, about to be computed again: its canvas, and whether this model would give the same.

Another model's weights, or an intervention then or now, would give something else than what the trace holds,
and are refused.
"""

import numpy as np

from ..errors import UsageError
from ..models import Model
from ..models.select import chosen
from ..trace import Trace


def canvas_of(model: Model, trace: Trace, step: int) -> np.ndarray:
    """The tokens that step's forward was given, once it is sure that this model gave it."""
    require_same(model, trace)
    step = chosen(step, trace.n_steps, "step")[0]
    canvas = trace.canvas.values[step]
    return np.asarray(canvas[canvas >= 0], np.int64)


def require_same(model: Model, trace: Trace) -> None:
    """The trace is of these weights, and no intervention was or is in force."""
    if trace.info.get("fingerprint") != model.fingerprint:
        raise UsageError(
            f"expected a trace of {model.name} ({model.fingerprint}), got one of "
            f"{trace.info['model']} ({trace.info.get('fingerprint')})",
            "Load the model that was traced, with the same dtype.",
        )
    if trace.interventions:
        raise UsageError(
            f"this trace was decoded under {' + '.join(trace.interventions)}",
            "What an intervention did at a step is not stored: trace without it.",
        )
    if model.edits:
        raise UsageError(
            "an intervention is in force on this model, and none was when it was traced",
            "Ask outside of its `with`.",
        )
