"""Recompute one step of a run: candidates for a position at each layer, and complete attention patterns.

Traces store neither candidates nor complete patterns. If a run has no edits, a step is recomputed by one
forward over the canvas of the step. If a run has edits, the run is decoded again up to the step, without
recording. A single forward would not be enough: in a causal model, the cache contains the effect of an
intervention on earlier rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.lens import output_of, proving
from ..decode import decode
from ..decode.state import State, Watcher
from ..errors import UsageError
from ..instrument import Model
from ..models import attention_hook, parts
from ..recording.finished import TraceStep
from ..recording.pattern import head_weights
from ..scenes.codec import pack_log
from ..trace import Trace
from .asked import ParsedRun


class _StepReached(Exception):
    """Raised when the requested step has been computed."""


class Step:
    """A step of a finished run; the step can be recomputed."""

    def __init__(self, model: Model, parsed: ParsedRun, path: str, step: int) -> None:
        self.model, self.asked, self.step = model, parsed, step
        self.trace = Trace.load(path, lazy=True)
        if step >= self.trace.n_steps:
            raise UsageError(
                f"no step {step}: there are {self.trace.n_steps}",
                f"Choose from 0 to {self.trace.n_steps - 1}.",
            )
        canvas = self.trace.canvas.values[step]
        self.ids = np.asarray(canvas[canvas >= 0], np.int64)
        self.prompt_length = int(self.trace.info["prompt_length"])

    @torch.inference_mode()
    def rerun_step(self, around: "Callable[[State | None], Any]") -> None:
        """Run the step's forward inside `around(state)`; a run with edits is first decoded up to the step.

        For a run without edits, `state` is None. For a run with edits, `around` is also entered at earlier
        steps whose rows are cached.
        """
        model = self.model
        if self.asked.intervention is None:
            last = torch.tensor([len(self.ids) - 1], device=model.device)
            ids = torch.from_numpy(self.ids)[None].to(model.device)
            visible = TraceStep(model, self.trace, self.step).visibility()
            with attention_hook.lock_network(model.net), around(None):
                model.forward(ids, last, visible)
            return
        watcher = _StopAtStep(self.step, around)
        try:
            with self.asked.under(model), attention_hook.lock_network(model.net):
                decode(model, [self.asked.encoded], self.asked.sampler, watcher, None, "auto")
        except _StepReached:
            return
        raise UsageError(f"the run has no step {self.step}", "Choose one of its own.")


class _StopAtStep(Watcher):
    def __init__(self, step: int, around: "Callable[[State | None], Any]") -> None:
        self.step, self.around = step, around

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        if state.step == self.step or state.cached:
            with self.around(state):
                yield
        else:
            yield

    def stepped(self, state: State, canvas: Tensor, confidence: Tensor) -> None:
        if state.step == self.step:
            raise _StepReached


# Candidates


@torch.inference_mode()
def candidates(step: Step, position: int, top: int) -> dict[str, Any]:
    """Return the `top` most likely tokens of a position at a step, with their probability at each layer."""
    model, size = step.model, len(step.ids)
    last = size if model.is_diffusion else size + 1  # a causal model predicts the next one
    if not step.prompt_length <= position < last:
        raise UsageError(
            f"position {position} is not one of the answer's at this step",
            f"Choose from {step.prompt_length} to {last - 1}.",
        )
    row = max(0, position - model.shift)
    by_layer = _readings(step, row)
    order = by_layer[-1].topk(top).indices
    ids = [int(i) for i in order]
    texts = model.token_texts(ids)
    best = [int(chances.argmax()) for chances in by_layer]
    spelled = model.token_texts(best)
    return {
        "step": step.step,
        "position": position,
        "masked": bool(position >= size or step.ids[position] == model.mask_id),
        "candidates": [
            {"id": i, "text": text, "p": float(by_layer[-1][i])}
            for i, text in zip(ids, texts, strict=True)
        ],
        "layers": [
            {
                "layer": layer,
                "best": {
                    "id": best[layer],
                    "text": spelled[layer],
                    "p": float(chances[best[layer]]),
                },
                "p": [float(chances[i]) for i in ids],
            }
            for layer, chances in enumerate(by_layer)
        ],
    }


def _readings(step: Step, row: int) -> list[Float[Tensor, " v"]]:
    """Return token probabilities at a row from each layer's output; the last layer gives the model's."""
    model = step.model
    readout = parts.readout(model.net)
    rows: list[Tensor] = []

    @contextmanager
    def around(state: State | None) -> Iterator[None]:
        if state is not None and state.step != step.step:  # rows of earlier steps, in the cache
            yield
            return
        # The first of the rows that this forward computes.
        first = 0 if state is None else state.canvas.shape[1] - state.visible.queries

        def hold(module: nn.Module, args: Any, output: Any) -> None:
            rows.append(output_of(output)[0, row - first])

        hooks = [block.register_forward_hook(hold) for block in parts.layers(model.net)]
        try:
            with proving(model):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    step.rerun_step(around)
    assert readout is not None  # proven
    chances = []
    for hidden in rows:
        logits = readout(hidden[None])[0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if model.mask_id is not None:
            logits[model.mask_id] = -torch.inf
        chances.append(logits.softmax(-1).cpu())
    return chances


# Patterns


def pattern(step: Step, layer: int, head: int, position: int | None) -> dict[str, Any]:
    """Return a head's attention matrix at a step, or only its row that predicts `position`."""
    model, size = step.model, len(step.ids)
    for kind, number, count in (("layer", layer, model.n_layers), ("head", head, model.n_heads)):
        if number >= count:
            raise UsageError(f"no {kind} {number}: there are {count}", f"From 0 to {count - 1}.")
    matrix = np.full((size, size), np.nan, np.float32)

    def look(call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        if call.layer == layer:
            weights = head_weights(call, head)  # (rows of this forward, keys so far)
            part = weights.float().cpu().numpy()
            first = part.shape[1] - part.shape[0]
            matrix[first : first + len(part)] = 0  # a causal row gives nothing to what comes later
            matrix[first : first + len(part), : part.shape[1]] = part
        return proceed(call)

    @contextmanager
    def around(state: State | None) -> Iterator[None]:
        with attention_hook.attach(model.net, look, innermost=True):
            yield

    step.rerun_step(around)
    tokens = model.token_texts(step.ids.tolist())
    answer = {"size": size, "layer": layer, "head": head, "step": step.step, "shift": model.shift}
    if position is None:
        return {**answer, "tokens": tokens, "pattern": pack_log(matrix)}
    row = position - model.shift
    if not 0 <= row < size:
        raise UsageError(f"no row predicts position {position} at this step", "Choose another.")
    return {**answer, "position": position, "row": pack_log(matrix[row])}
