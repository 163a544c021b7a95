"""One step of a trace, to be computed again by the model that was traced."""

import numpy as np
import torch

from ..errors import UsageError
from ..models import Model, Visibility
from ..models.select import chosen
from ..sequences.direction import current_block
from ..trace import Trace


class TraceStep:
    """A step's number, its tokens without padding (`ids`), and which of them are masked.

    A trace of other weights, or one recorded under an intervention, is refused.
    """

    def __init__(self, model: Model, trace: Trace, step: int) -> None:
        _require_same(model, trace)
        self.model, self.trace = model, trace
        self.number = chosen(step, trace.n_steps, "step")[0]
        self.prompt_length = int(trace.info["prompt_length"])
        canvas = trace.canvas.values[self.number]
        self.ids = np.asarray(canvas[canvas >= 0], np.int64)
        self.masked = self.ids == (-2 if model.mask_id is None else model.mask_id)
        self.masked[: self.prompt_length] = False

    def visibility(self, copies: int = 1) -> Visibility:
        """Return which keys each row sees, for a batch of `copies` canvases of this step's size."""
        model, size, current = self.model, len(self.ids), None
        if model.block is not None:
            offset = model.grid.offset(model.block, self.prompt_length)
            first, stop = self.trace.data["block"].values[self.number].tolist()
            begin = current_block(first, stop, model.block, offset)
            current = torch.full((copies,), begin, device=model.device)
        padding = torch.zeros(copies, dtype=torch.long, device=model.device)
        prompts = [self.prompt_length] * copies
        return model.visibility(size, size, padding, prompts=prompts, current=current)


def _require_same(model: Model, trace: Trace) -> None:
    """Refuse a trace of other weights or under an intervention, and a model under one."""
    if trace.info.get("fingerprint") != model.fingerprint:
        raise UsageError(
            f"expected a trace of {model.name} ({model.fingerprint}), got one of "
            f"{trace.info['model']} ({trace.info.get('fingerprint')})",
            "Load the model that was traced, with the same dtype.",
        )
    if "stale" in trace.data:
        raise UsageError(
            f"this trace was decoded with the approximate cache {trace.info['cache']!r}, whose contents "
            "are not stored",
            "Trace with cache=None.",
        )
    if trace.interventions:
        raise UsageError(
            f"this trace was decoded under {' + '.join(trace.interventions)}, whose effect on a step is "
            "not stored",
            "Trace without the intervention.",
        )
    if model.edits:
        what = "an intervention is active on this model, but none was when the trace was recorded"
        raise UsageError(what, "Call this outside the intervention's `with` block.")
