"""Run forwards over given canvases: a finished text, or the stored steps of a trace.

No token is decoded: the canvases may come from another model or be written by hand.
"""

from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from ..decode.replay import Forwards
from ..decode.samplers.base import Sampler
from ..decode.state import State, check_fits, notify_edits
from ..errors import UsageError
from ..models import Direction, Model, Visibility
from ..models.select import chosen
from ..sequences.decoding import ABSENT, Decoding, change_of
from ..sequences.direction import current_block
from ..sequences.prompt import Encoded
from ..stats.movement import UNTIL
from ..trace import Trace
from .options import TraceOptions
from .recorder import Recorder


@dataclass(frozen=True)
class NoSampler(Sampler):
    """Placeholder for the sampler, for canvases that no sampler of Floatscope filled."""

    description: str = ""

    def describe(self) -> str:
        return self.description


Canvas = Int[np.ndarray, "states s"]


def decoding_of(
    model: Model,
    prompt: Encoded,
    canvas: Canvas,
    block: Int[np.ndarray, "t 2"],
    ended: str,
    cache: str | None = None,
) -> Decoding:
    """Create a Decoding, without confidences, from canvases that no sampler of Floatscope filled."""
    mask, start = ABSENT if model.mask_id is None else model.mask_id, len(prompt.ids)
    change = change_of(canvas[:-1], canvas[1:], mask)
    change[:, :start] = 0
    return Decoding(
        prompt=prompt,
        canvas=canvas,
        change=change,
        confidence=np.full(change.shape, np.nan, dtype=np.float32),
        block=block,
        ended=ended,
        text=model.text([i for i in canvas[-1, start:].tolist() if i not in (mask, ABSENT)]),
        cache=cache,
    )


def reading(model: Model, prompt: Encoded, answer: list[int], options: TraceOptions) -> Trace:
    """Run one forward over prompt and answer; return a trace of one step, in which no token changes.

    Positions that are still masks in the answer, because decoding ended early, count as masked.
    """
    check_fits(model, len(prompt.ids), len(answer), remedy="Shorten the sequence.")
    return _read(model, prompt, np.array([[*prompt.ids, *answer]] * 2), options)


def reading_states(model: Model, trace: Trace, steps: list[int], options: TraceOptions) -> Trace:
    """Run a forward over the canvas of some steps of a trace; group rows by how long they stay masked.

    The new trace has one step per state. Its query groups are "prompt" and "masked until i". The latter group
    contains the rows of the answer that are masked at state i and at no later state, so that two states can
    be compared on the rows that are masked in both. The model need not be the one that decoded the answer.

    Args:
        model: a diffusion model whose rows see the whole canvas.
        trace: the trace of the decoding.
        steps: indices of kept steps of the trace, in order.
        options: statistics, layers and heads to keep; with `groups="regions"`.
    """
    if not model.is_diffusion or model.block is not None:
        problem = f"{model.name}: rows that are masked at two states do not see the same canvas"
        raise UsageError(
            problem, "Compare states of diffusion models whose rows see every position."
        )
    canvas = trace.canvas.values[[*trace.data["step"].values[steps], -1]]  # (state, position)
    masked = trace.data["masked"].values[steps]
    last = np.where(masked.any(0), len(steps) - 1 - masked[::-1].argmax(0), -1)
    start = int(trace.info["prompt_length"])
    regions = (*["prompt"] * start, *(f"{UNTIL} {state}" for state in last[start:]))
    return _read(model, Encoded(tuple(canvas[0].tolist()), regions), canvas, options)


def replaying(model: Model, trace: Trace, options: TraceOptions | None = None) -> Trace:
    """Run a forward over the canvas of each kept step of a trace, as if this model had decoded it.

    The model must be a diffusion model whose rows see the whole canvas. It need not be the model that was
    traced.
    """
    canvas = trace.canvas.values[[*trace.data["step"].values, -1]]
    return _read(model, prompt_of(trace), canvas, options)


def prompt_of(trace: Trace) -> Encoded:
    """Return the trace's prompt, with its regions."""
    start = int(trace.info["prompt_length"])
    ids = trace.canvas.values[-1, :start].tolist()
    regions = map(str, trace.data["region"].values[:start])
    return Encoded(tuple(ids), tuple(regions), str(trace.info["gold"]) or None)


def _read(model: Model, prompt: Encoded, canvas: Canvas, options: TraceOptions | None) -> Trace:
    """Return the trace of forwards over each canvas except the last, which is the result."""
    (steps, size), start = (len(canvas) - 1, canvas.shape[1]), len(prompt.ids)
    described = f"read({size - start} answer tokens)"
    sampler = NoSampler(length=size - start, steps=steps, description=described)
    recorder = Recorder(model, [prompt], sampler, options)
    last = torch.tensor([size - 1], device=model.device)
    forwards = visible = None
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(recorder)
        if model.direction is Direction.BIDIRECTIONAL:  # forwards can be recorded and replayed
            forwards = stack.enter_context(closing(Forwards(model, recorder)))
        for step in range(steps):
            tokens = torch.tensor(canvas[None, step], dtype=torch.long, device=model.device)
            state = State.build(
                *(model, [prompt], tokens, (size, size)),
                prompt_end=start,
                predicting=(size - 1, size),
                step=step,
                visible=visible,
            )
            visible = state.visible
            with notify_edits(model, state), recorder.forward(state):
                if forwards is None:
                    model.forward(tokens, last, visible)
                else:
                    forwards.forward(last, state, steps - step)
    decoding = decoding_of(model, prompt, canvas, np.full((steps, 2), size), "read")
    return recorder.traces([decoding])[0]


class TraceStep:
    """One step of a trace: its number, its tokens without padding (`ids`), and which tokens are masked.

    The constructor raises UsageError if the trace was recorded with other weights, an approximate cache or an
    intervention, or if an intervention is active on the model.
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
    """Raise UsageError for other weights, an approximate cache, or an intervention on model or trace."""
    if trace.info.get("fingerprint") != model.fingerprint:
        other = f"{trace.info['model']} ({trace.info.get('fingerprint')})"
        problem = f"expected a trace of {model.name} ({model.fingerprint}), got one of {other}"
        raise UsageError(problem, "Load the model that was traced, with the same dtype.")
    if "stale" in trace.data:
        problem = f"the approximate cache {trace.info['cache']!r} of this trace is not stored"
        raise UsageError(problem, "Trace with cache=None.")
    if trace.interventions:
        edits = " + ".join(trace.interventions)
        problem = f"this trace was decoded under {edits}, whose effect on a step is not stored"
        raise UsageError(problem, "Trace without the intervention.")
    if model.edits:
        problem = (
            "an intervention is active on this model, but none was when the trace was recorded"
        )
        raise UsageError(problem, "Call this outside the intervention's `with` block.")
