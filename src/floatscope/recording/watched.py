"""Record one generation of a watched network: its canvases, its forwards and its traces.

The number of forwards and the length of the canvas are not known beforehand, so the arrays of the recorder
grow. Which tokens a forward revealed, and whether a cache kept its rows, is known only at the next forward.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..decode.state import State
from ..errors import CaptureError, UsageError
from ..models import Direction, Model, attention_hook
from ..sequences.decoding import ABSENT, Decoding
from ..sequences.direction import block_start
from ..sequences.prompt import Encoded
from ..trace import Trace
from .finished import NoSampler, decoding_of
from .options import TraceOptions
from .recorder import Recorder
from .step_record import all_layers

_ROOM = 32  # initial room for steps
_BY_ROW = {"residual_norm", "massive", "experts", "lens"}  # measured by hooks, on forwarded rows
_CHANGES = ("softcap", "s_aux", "position_bias")  # transformers' names for changes to scores
_ONLY_SOFTMAX = "Only attention that is a softmax of scaled products can be watched."


@dataclass(frozen=True, eq=False)
class ComputedColumns:
    """Canvas columns that one forward computes: all from `past` on, or those marked in `fresh`."""

    canvas: Int[Tensor, "b k"]
    padding: Int[Tensor, " b"]
    past: int = 0  # columns in a growing cache
    fresh: Bool[Tensor, "b k"] | None = None  # with a cache that replaces entries; None: all
    order: Int[Tensor, "b k"] | None = None  # column of each key; None: the order of the canvas


class Generation:
    """A batch of prompts that a watched network decodes together."""

    def __init__(
        self,
        model: Model,
        options: TraceOptions,
        computed: ComputedColumns,
        user_prompts: list[Encoded],
        prompt_length: int | None,
    ) -> None:
        self.model, self.options, self.user_prompts = model, options, user_prompts
        self.forwards: list[ComputedColumns] = []
        self.windows: list[tuple[int, int]] = []  # window of each forward
        self.result: Tensor | None = None  # the ids that the loop returned
        self.padding = computed.padding
        self._offsets: list[int] = computed.padding.tolist()
        canvas = computed.canvas
        self.blind = self._second_half_is_guidance(canvas)  # no traces are returned for this half
        conditional = canvas[: len(canvas) // 2] if self.blind else canvas
        self.prompt_end = self._prompt_end(conditional, prompt_length)
        self.prompts = self._prompts(canvas, len(conditional))
        sampler = NoSampler(canvas.shape[1] - self.prompt_end, steps=_ROOM, description="watched")
        self.recorder = Recorder(model, self.prompts, sampler, options)
        self.recorder.steps = range(sys.maxsize)
        self.recorder.capture.foreign = True
        self.recorder.__enter__()
        self.closed = False
        # Rows in a cache never change, so sums accumulate.
        self._accumulates = model.direction is not Direction.BIDIRECTIONAL
        self.state: State  # of the last forward, as are the fields below
        self._rows = 0  # rows per prompt
        self._compared: set[int | None] = set()  # reaches of layers whose masks were checked
        self._traces: list[Trace] = []
        self._finished = False  # the traces include the last forward's tokens
        self._undo: dict[str, Tensor] = {}  # sums before the last forward
        self._tail: Tensor | None = None  # the last layer's key of the last column in the cache
        self._next_tail: Tensor | None = None

    @property
    def computed(self) -> ComputedColumns:
        return self.forwards[-1]

    @property
    def canvas(self) -> Int[Tensor, "b k"]:
        return self.computed.canvas

    # Start of a generation

    def _second_half_is_guidance(self, canvas: Int[Tensor, "b k"]) -> bool:
        """Return whether the second half of a batch repeats the first half with masked prompts (guidance)."""
        mask = self.model.mask_id
        if len(canvas) % 2 or mask is None:
            return False
        first, second = canvas.chunk(2)
        hidden = (second == mask) & (first != mask)
        return self._begins_with(mask, second) and bool(((first == second) | hidden).all())

    def _begins_with(self, token: int, canvas: Int[Tensor, "b k"]) -> bool:
        """Return whether the first token of every prompt, after its padding, is `token`."""
        first = canvas.gather(1, self.padding[: len(canvas), None])
        return bool(torch.eq(first, token).all())

    def _prompt_end(self, canvas: Int[Tensor, "b k"], prompt_length: int | None) -> int:
        """Return the column at which the answers begin."""
        if self.user_prompts:
            named = self.user_prompts
            named = named * len(canvas) if len(named) == 1 else named
            ends = {offset + len(p.ids) for offset, p in zip(self._offsets, named, strict=False)}
            if len(named) != len(canvas) or len(ends) > 1:
                problem = f"{len(self.user_prompts)} prompts for {len(canvas)} rows, or of unequal lengths"
                raise UsageError(
                    problem, "Give one prompt per row, with the ids padded on the left."
                )
            return ends.pop()
        if prompt_length is not None:
            return prompt_length
        end = self._first_mask(canvas)
        if end == 0:
            problem = "the first column of the first canvas is masked"
            raise UsageError(problem, "Set prompt_length to at least 1.")
        return canvas.shape[1] if end is None else end

    def _first_mask(self, canvas: Int[Tensor, "b k"]) -> int | None:
        if self.model.mask_id is None:
            return None
        masked = torch.eq(canvas, self.model.mask_id).any(0).nonzero()
        return int(masked[0]) if len(masked) else None

    def _prompts(self, canvas: Int[Tensor, "b k"], n_conditional: int) -> list[Encoded]:
        """Return the prompt of each row: the user's, or else one region "prompt" of the canvas tokens."""
        prompts = []
        for b, offset in enumerate(self._offsets):
            ids = tuple(canvas[b, offset : self.prompt_end].tolist())
            prompt = Encoded(ids, ("prompt",) * len(ids))
            if self.user_prompts and b < n_conditional:
                prompt = self.user_prompts[b % len(self.user_prompts)]
            if prompt.ids != ids:
                problem = f"the tokens of prompt {b} differ from those given to the network"
                raise UsageError(problem, "Create the ids with session.encode(prompt).ids.")
            prompts.append(prompt)
        return prompts

    # Between forwards

    def is_guidance(self, computed: ComputedColumns) -> bool:
        """Return whether a forward repeats the last canvas with a masked prompt (guidance)."""
        mask, end = self.model.mask_id, self.prompt_end
        new, old = computed.canvas, self.canvas
        if mask is None or new.shape != old.shape or computed.past or torch.equal(new, old):
            return False
        return torch.equal(new[:, end:], old[:, end:]) and self._begins_with(mask, new)

    def continues(self, computed: ComputedColumns) -> bool:
        """Return whether a forward belongs to this generation."""
        if computed.past:  # its canvas was built from this generation
            return True
        new, old = computed.canvas, self.canvas
        if len(new) != len(old) or not torch.equal(computed.padding, self.padding):
            return False
        causal, size = self.model.mask_id is None, old.shape[1]
        if new.shape[1] < size + causal:
            return False
        end = size if causal else self.prompt_end
        same_prompt = torch.equal(new[:, :end], old[:, :end])
        restarted = torch.equal(new, self.forwards[0].canvas) and not torch.equal(new, old)
        return same_prompt and not restarted

    def begin(self, computed: ComputedColumns) -> None:
        """Record the tokens that the last forward revealed, and prepare the next forward."""
        if self.forwards:
            self._decide(computed.canvas)
            self._settle(computed)
        size = computed.canvas.shape[1]
        length = size + (self.model.mask_id is None)  # including the predicted token
        for recorded, offset in zip(self.recorder.recorded, self._offsets, strict=True):
            positions = length - offset
            if positions > recorded.shape.size:
                recorded.shape = replace(recorded.shape, size=positions + positions // 2)
        # Cloned, because a loop may write into its canvas.
        computed = replace(computed, canvas=computed.canvas.clone())
        self.state = self._state(computed)
        self.forwards.append(computed)
        fresh = computed.fresh
        self._rows = self.state.visible.queries if fresh is None else int(fresh[0].sum())
        self._compared.clear()
        self.windows.append(self.state.window)

    def _state(self, computed: ComputedColumns) -> State:
        model, end = self.model, self.prompt_end
        canvas, past, fresh = computed.canvas, computed.past, computed.fresh
        size, first, stop = canvas.shape[1], computed.past, canvas.shape[1]
        new = rows = predicting = None
        if past and not self._accumulates:
            fresh = torch.zeros_like(canvas, dtype=torch.bool)
            fresh[:, past:] = True
        if fresh is not None:
            if self._accumulates:
                problem = f"a cache replaces entries in a network that is {model.direction}"
                raise UsageError(problem, "Run it without that cache.")
            columns = fresh.any(0).nonzero()
            first, stop = rows = int(columns[0]), int(columns[-1]) + 1
        elif past or model.mask_id is None:
            new = size - past
        if model.mask_id is None:
            window = (size, size + 1)
        else:
            low = min(max(end, first + model.shift, self._block_start(canvas)), size)
            window = (low, max(low, min(stop + model.shift, size)))
        if window[0] == window[1]:  # no position can be revealed
            predicting = (stop - first - 1, stop - first)
        return State.build(
            *(model, self.prompts, canvas, window),
            prompt_end=end,
            step=len(self.forwards),
            new=new,
            predicting=predicting,
            ends=None if model.block is None else [size] * len(canvas),
            rows=rows,
            fresh=fresh,
        )

    def _block_start(self, canvas: Int[Tensor, "b k"]) -> int:
        """Return the column at which the block with the first mask begins; 0 for a model without blocks."""
        model = self.model
        masked = self._first_mask(canvas[:, self.prompt_end :])
        if model.block is None or masked is None:
            return 0
        prompt = len(self.prompts[0].ids)
        offset = model.grid.offset(model.block, prompt)
        return self._offsets[0] + block_start(prompt + masked, model.block, offset)

    def _decide(self, canvas: Int[Tensor, "b k"] | None) -> None:
        """Pass the tokens that the last forward revealed, read from the next canvas, to the recorder."""
        low, high = self.windows[-1]
        if low == high or canvas is None or canvas.shape[1] < high:
            return
        token, mask = canvas[:, low:high], self.model.mask_id
        revealed = torch.ones_like(token, dtype=torch.bool)
        if mask is not None:
            revealed = (self.canvas[:, low:high] == mask) & (token != mask)
        with torch.inference_mode():
            self.recorder.receive_decision(self.state, revealed, token)
            self.recorder.store_revealed_rows()  # before the loop overwrites its cache

    def _settle(self, computed: ComputedColumns) -> None:
        """Keep the last forward's sums, or revert them if the cache did not keep its rows."""
        running, rollout = self.recorder.running, self.recorder.capture.rollout
        if not self._accumulates or not computed.past:
            running.total, self._undo = {}, {}
            if self._accumulates:
                rollout.cached_states, self._tail = {}, None
            return
        last, captured = self.computed, self.recorder.captured
        if computed.past == last.canvas.shape[1]:
            if not self.state.cached and captured is not None:  # the first forward, without a cache
                running.total, running.prompts = all_layers(captured), list(self.state.active)
            self._tail = self._next_tail
        elif computed.past == last.past:
            running.total = dict(self._undo)
        else:
            size = last.canvas.shape[1]
            problem = f"the cache has {computed.past} positions, but {size} after the last forward"
            raise UsageError(
                problem, "Use a loop that keeps all rows or none, not assisted generation."
            )
        states = rollout.cached_states.items()
        rollout.cached_states = {
            layer: (prompts, rows[:, : computed.past]) for layer, (prompts, rows) in states
        }
        self._undo = dict(running.total)

    # During a forward

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Record one forward, which runs in the grad and inference modes of the caller."""
        inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        with (
            torch.inference_mode(),
            self.recorder.forward(self.state),
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
        ):
            yield

    def attend(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        """Record an attention call; raise CaptureError if it does not match the step."""
        if changes := [name for name in _CHANGES if call.extra.get(name) is not None]:
            problem = f"the network changes its scores: {', '.join(changes)}"
            raise CaptureError(problem, _ONLY_SOFTMAX)
        if call.mask is not None:
            call = replace(call, mask=mask_of(call.mask))
        self._check_keys(call)
        self._check_mask(call)
        if self.computed.order is None and self.state.visible.queries == call.query.shape[2]:
            return proceed(call)
        if by_row := sorted(_BY_ROW & self.options.kept_statistics):
            problem = f"{by_row[0]!r} is not available for forwards with gaps between their rows"
            raise UsageError(problem, f"Leave {', '.join(by_row)} out of keep.")
        output = attention_hook.compute_attention(call)
        proceed(self._in_place(call))
        return output

    def _check_keys(self, call: attention_hook.Call) -> None:
        """Raise CaptureError if the rows and keys of a forward do not match its ids and cache."""
        rows, keys = call.query.shape[2], call.key.shape[2]
        if (rows, keys) != (self._rows, self.state.visible.keys):
            expected = f"{self._rows} over {self.state.visible.keys}"
            problem = (
                f"attention of {rows} rows over {keys} keys, but ids and cache imply {expected}"
            )
            raise CaptureError(
                problem, "Specify which columns the network computes: watch(..., rows=…)."
            )
        if not self.state.cached or call.layer != self.model.n_layers - 1:
            return
        past = self.computed.past
        tail = self._tail if past else None
        if tail is not None and not torch.equal(call.key[:, :, past - 1], tail):
            remedy = "Run without beam search (num_beams=1), and one generation at a time."
            raise CaptureError("the cache is not that of the last forward", remedy)
        self._next_tail = call.key[:, :, -1].clone()

    def _check_mask(self, call: attention_hook.Call) -> None:
        """Raise CaptureError if the mask does not follow from direction and padding (one check per reach)."""
        model, reach = self.model, self.model.reaches[call.layer]
        if reach in self._compared:
            return
        self._compared.add(reach)
        visible = self.state.visible.within(reach)
        plain = call.mask is None and reach is None and not visible.padded
        same_direction = call.causal == visible.is_causal or call.query.shape[2] == 1
        if plain and same_direction and not visible.direction.in_blocks:
            return
        expected, rows = visible.matrix, visible.row_is_real
        if self.computed.fresh is not None and visible.queries != call.query.shape[2]:
            fresh = self.computed.fresh[:, visible.rows]
            expected, rows = (t[fresh].unflatten(0, (len(t), -1)) for t in (expected, rows))
        differ = (attention_hook.explicit_mask(call) != expected[:, None]) & rows[:, None, :, None]
        if bool(differ.any()):
            b, _, row, column = differ.nonzero()[0].tolist()
            sees = "does not see" if bool(expected[b, row, column]) else "sees"
            size = f" in blocks of {model.block}" if model.block else ""
            problem = f"{model.name} should be {model.direction}{size}, but row {row} {sees} column {column}"
            remedy = "and prompt_length= if blocks begin with the answer."
            raise CaptureError(problem, f"Set watch(..., direction=…, block=…, grid=…), {remedy}")

    def _in_place(self, call: attention_hook.Call) -> attention_hook.Call:
        """Return the call with keys in the order of the canvas, and gaps between rows filled with zeros.

        The rows that fill the gaps do not count in any statistic.
        """
        visible, fresh, order = self.state.visible, self.computed.fresh, self.computed.order
        if order is not None:
            place = order.argsort(1)[:, None, :, None]
            key, value = (t.gather(2, place.expand_as(t)) for t in (call.key, call.value))
            call = replace(call, key=key, value=value)
        if fresh is not None and visible.queries != call.query.shape[2]:
            counts = fresh[:, visible.rows]  # (b, q)
            query = call.query.new_zeros(*counts.shape, *call.query.shape[1::2])  # (b, q, h, d)
            query[counts] = call.query.transpose(1, 2).flatten(0, 1)
            call = replace(call, query=query.transpose(1, 2))
        return replace(call, mask=None if call.mask is None else visible.mask)

    # Afterwards

    def close(self) -> None:
        """Detach the recorder from the network, and release tensors that are not needed for the traces."""
        if self.closed:
            return
        self.closed, recorder = True, self.recorder
        recorder.__exit__(None, None, None)
        recorder.running.total, recorder.capture.rollout.cached_states = {}, {}
        self._undo, self._tail, self._next_tail = {}, None, None
        for layer in recorder.captured.layers.values() if recorder.captured is not None else ():
            layer.values = {}

    def traces(self, result: Any) -> list[Trace]:
        """Return one trace per prompt, without the guidance half of the batch."""
        self.close()
        if self._traces and result is not None and not self._finished:
            remedy = "Give result in the first call: session.trace(result)."
            raise UsageError("the trace was built before result was given", remedy)
        if not self._traces:
            n = len(self.prompts) // 2 if self.blind else len(self.prompts)
            final = self._checked(self.result if result is None else result, n)
            self._finished = final is not None
            self._decide(torch.cat([final, final]) if self.blind and final is not None else final)
            decodings = [self._decoding(b, final) for b in range(n)]
            self._traces = self.recorder.traces(decodings)
            self.recorder.captured = None
        return self._traces

    def _checked(self, final: Any, n: int) -> Int[Tensor, "n s"] | None:
        """Return the ids that a loop returned up to the last position that it could reveal; None if unknown.

        Raises UsageError if the ids do not continue the last canvas.
        """
        if final is None:
            return None
        last, causal = self.canvas[:n], self.model.mask_id is None
        final = torch.as_tensor(final).to(last.device)
        final = final[None] if final.ndim == 1 else final
        n_fixed = last.shape[1] if causal else self.prompt_end
        fits = final.ndim == 2 and len(final) == n and final.shape[1] >= last.shape[1]
        if not fits or not torch.equal(final[:, :n_fixed], last[:, :n_fixed]):
            problem = (
                f"result {tuple(final.shape)} does not continue the canvas {tuple(last.shape)}"
            )
            raise UsageError(problem, "Give the ids that this loop returned, including the prompt.")
        return final[:, : last.shape[1] + causal]

    def _decoding(self, b: int, final: Int[Tensor, "n s"] | None) -> Decoding:
        model, offset, prompt = self.model, self._offsets[b], self.prompts[b]
        canvases = [computed.canvas for computed in self.forwards]
        canvases.append(canvases[-1] if final is None else final)
        states = [canvas[b, offset:].tolist() for canvas in canvases]
        canvas = np.full((len(states), max(map(len, states))), ABSENT, dtype=np.int64)
        for t, ids in enumerate(states):
            canvas[t, : len(ids)] = ids
        block, start = np.array(self.windows) - offset, len(prompt.ids)
        masked = canvas[-1] == (ABSENT if model.mask_id is None else model.mask_id)
        ended = "unfinished" if final is None or masked.any() else "complete"
        if model.mask_id is None and (steps := _steps_to_end(canvas[-1, start:], model.end_ids)):
            canvas, block, ended = canvas[: steps + 1, : start + steps], block[:steps], "eos"
        cache = None
        if model.is_diffusion and any(f.past or f.fresh is not None for f in self.forwards):
            cache = "exact" if self._accumulates else "approximate"
        return decoding_of(model, prompt, canvas, block, ended, cache)


def mask_of(mask: Tensor) -> Bool[Tensor, "..."]:
    """Convert a mask to booleans; masks may contain numbers that are added to scores."""
    if mask.dtype == torch.bool:
        return mask
    visible = mask == 0
    if bool((mask[~visible] > -1e4).any()):
        problem = "the network adds numbers other than 0 and −inf to its scores"
        raise CaptureError(problem, _ONLY_SOFTMAX)
    return visible


def _steps_to_end(answer: Int[np.ndarray, " n"], ends: Sequence[int]) -> int:
    """Return the number of answer tokens up to the first end token; 0 if there is none or if text follows.

    If all tokens after the end token are equal, they are padding, not text.
    """
    places = np.flatnonzero(np.isin(answer, ends))
    if not len(places) or len(set(answer[places[0] + 1 :].tolist())) > 1:
        return 0
    return int(places[0]) + 1
