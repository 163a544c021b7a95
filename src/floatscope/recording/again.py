"""A step of a trace, about to be computed again: its canvas, and whether this model would give the same.

Another model's weights, or an intervention then or now, would give something else than what the trace holds,
and are refused.
"""

import numpy as np
import torch

from ..errors import UsageError
from ..models import Model, Visibility
from ..models.select import chosen
from ..sequences.direction import current_block
from ..trace import Trace


def canvas_of(model: Model, trace: Trace, step: int) -> np.ndarray:
    """The tokens that step's forward was given, once it is sure that this model gave it."""
    require_same(model, trace)
    step = chosen(step, trace.n_steps, "step")[0]
    canvas = trace.canvas.values[step]
    return np.asarray(canvas[canvas >= 0], np.int64)


def visibility_of(model: Model, trace: Trace, step: int, copies: int = 1) -> Visibility:
    """Who saw whom at that step, for so many canvases of its size."""
    size = len(canvas_of(model, trace, step))
    prompt = int(trace.info["prompt_length"])
    current = None
    if model.block is not None:
        at = chosen(step, trace.n_steps, "step")[0]
        first, stop = (int(edge) for edge in trace.data["block"].values[at])
        begin = current_block(first, stop, model.block, model.grid.offset(model.block, prompt))
        current = torch.full((copies,), begin, device=model.device)
    padding = torch.zeros(copies, dtype=torch.long, device=model.device)
    return model.visibility(size, size, padding, prompts=[prompt] * copies, current=current)


def require_same(model: Model, trace: Trace) -> None:
    """The trace is of these weights, and no intervention was or is in force."""
    if trace.info.get("fingerprint") != model.fingerprint:
        raise UsageError(
            f"expected a trace of {model.name} ({model.fingerprint}), got one of "
            f"{trace.info['model']} ({trace.info.get('fingerprint')})",
            "Load the model that was traced, with the same dtype.",
        )
    if "stale" in trace.data:
        raise UsageError(
            f"this trace was decoded with the approximate cache {trace.info['cache']!r}",
            "What it kept from step to step is not stored: trace with cache=None.",
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
