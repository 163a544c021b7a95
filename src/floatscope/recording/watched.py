"""One generation of a watched network: its canvases, the recorder of its forwards, and its traces.

How many forwards will come, and how long the canvas will be, is not known beforehand: `_make_room` lets the
recorder grow. What a forward revealed, and whether a cache keeps its rows, shows in the next forward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..decode.state import State
from ..errors import CaptureError, UsageError
from ..models import Direction, Model, seam
from ..sequences.decoding import ABSENT, Decoding
from ..sequences.direction import block_start
from ..sequences.prompt import Encoded
from ..trace import Trace
from .finished import NoSampler, decoding_of
from .options import TraceOptions
from .recorder import Recorder
from .step_record import all_layers

_ROOM = 32  # steps at first


@dataclass(frozen=True, eq=False)
class Computed:
    """Which columns of the canvas one forward computes: all from `past` on, or those marked in `fresh`."""

    canvas: Int[Tensor, "b k"]
    padding: Int[Tensor, " b"]
    past: int = 0  # columns in a cache that grows
    fresh: Bool[Tensor, "b k"] | None = None  # of a cache whose entries are replaced; None: all
    order: Int[Tensor, "b k"] | None = None  # the column of each key; None: as on the canvas


@dataclass(eq=False)
class Generation:
    """Prompts that are decoded together, from the first forward over them on."""

    model: Model
    options: TraceOptions
    computed: Computed  # by the last forward
    given: Sequence[Encoded] = ()
    prompt_length: int | None = None
    result: Tensor | None = None  # the ids that the loop returned
    canvases: list[Tensor] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)
    cached: bool = False  # some forward left rows out
    approximate: bool = False  # and what it used instead was old
    state: State = field(init=False)  # of the last forward, as is what follows
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        canvas, padding = self.computed.canvas, self.computed.padding
        self.padding = padding
        self._offsets: list[int] = padding.tolist()
        n = len(canvas)
        self.blind = self._second_half_is_guidance(canvas)  # and is not asked for
        self.prompt_end = self._prompt_end(canvas[: n // 2] if self.blind else canvas)
        self.prompts = [self._prompt(b) for b in range(n)]
        length = canvas.shape[1] - self.prompt_end
        sampler = NoSampler(length, steps=_ROOM, description="watched")
        self.recorder = Recorder(self.model, self.prompts, sampler, self.options)
        self.recorder.capture.foreign = True
        self.recorder.__enter__()
        self.closed = False
        self._traces: list[Trace] = []
        self._finished = False  # they know what the last forward revealed
        self._undo: dict[str, Tensor] = {}  # sums before the last forward
        self._tail: Tensor | None = None  # the last layer's key of the last column in the cache
        self._next_tail: Tensor | None = None

    @property
    def canvas(self) -> Int[Tensor, "b k"]:
        return self.computed.canvas

    @property
    def _accumulates(self) -> bool:
        """Rows in a cache never change: sums are added up."""
        return self.model.direction is not Direction.BIDIRECTIONAL

    # Where it begins

    def _second_half_is_guidance(self, canvas: Int[Tensor, "b k"]) -> bool:
        """Tell whether the second half of a batch is the first with its prompt masked."""
        mask = self.model.mask_id
        if len(canvas) % 2 or mask is None:
            return False
        first, second = canvas.chunk(2)
        hidden = (second == mask) & (first != mask)
        return self._begins_with(mask, second) and bool(((first == second) | hidden).all())

    def _begins_with(self, token: int, canvas: Int[Tensor, "b k"]) -> bool:
        """Tell whether every prompt's first token, behind its padding, is this one."""
        first = canvas.gather(1, self.padding[: len(canvas), None])
        return bool(torch.eq(first, token).all())

    def _prompt_end(self, canvas: Int[Tensor, "b k"]) -> int:
        """Find the column at which the answers begin."""
        if self.given:
            ends = {self._offsets[b] + len(self._named(b).ids) for b in range(len(canvas))}
            if len(self.given) not in (1, len(canvas)) or len(ends) > 1:
                raise UsageError(
                    f"{len(self.given)} prompts for a batch of {len(canvas)}, or of other lengths",
                    "Give one prompt for each, padded on the left.",
                )
            return ends.pop()
        if self.prompt_length is not None:
            return self.prompt_length
        if self.model.mask_id is None:
            return canvas.shape[1]
        masked = torch.eq(canvas, self.model.mask_id).any(0).nonzero()
        end = int(masked[0]) if len(masked) else canvas.shape[1]
        if not end:
            raise UsageError(
                "the first column of the first canvas is masked", "Say prompt_length=, at least 1."
            )
        return end

    def _named(self, b: int) -> Encoded:
        """Return the prompt that the user gave for this place of the batch."""
        return self.given[b % len(self.given)]

    def _prompt(self, b: int) -> Encoded:
        ids = tuple(self.canvas[b, self._offsets[b] : self.prompt_end].tolist())
        if not self.given or (self.blind and b >= len(self.canvas) // 2):
            return Encoded(ids, ("prompt",) * len(ids))
        prompt = self._named(b)
        if prompt.ids != ids:
            raise UsageError(
                f"prompt {b} has other tokens than those that the network was given",
                "Build the ids with session.encode(prompt).ids.",
            )
        return prompt

    # From forward to forward

    def is_guidance(self, computed: Computed) -> bool:
        """Tell whether a forward repeats the last canvas with its prompt masked."""
        mask, end = self.model.mask_id, self.prompt_end
        new, old = computed.canvas, self.canvas
        if mask is None or new.shape != old.shape or computed.past or torch.equal(new, old):
            return False
        return torch.equal(new[:, end:], old[:, end:]) and self._begins_with(mask, new)

    def continues(self, computed: Computed) -> bool:
        """Tell whether a forward belongs to this generation."""
        if computed.past:  # whose canvas was taken from here
            return True
        new, old = computed.canvas, self.canvas
        if len(new) != len(old) or not torch.equal(computed.padding, self.padding):
            return False
        if self.model.mask_id is None:
            return new.shape[1] > old.shape[1] and torch.equal(new[:, : old.shape[1]], old)
        end = self.prompt_end
        if new.shape[1] < old.shape[1] or not torch.equal(new[:, :end], old[:, :end]):
            return False
        again = torch.equal(new, self.canvases[0]) and not torch.equal(new, old)
        return not again

    def begin(self, computed: Computed) -> None:
        """Note what the last forward revealed, and describe the next one."""
        if self.canvases:
            self._decide(computed.canvas)
            self._settle(computed)
        size, step = computed.canvas.shape[1], len(self.canvases)
        most = size + (self.model.mask_id is None)  # with the token that it predicts
        _make_room(self.recorder, step + 1, [most - offset for offset in self._offsets])
        # Cloned: a loop may write into its own.
        self.computed = replace(computed, canvas=computed.canvas.clone())
        self.cached |= computed.past > 0 or computed.fresh is not None
        self.state = self._state(self.computed, step)
        self.rows = self.state.visible.queries  # of each prompt
        if computed.fresh is not None:
            self.rows = int(computed.fresh[0].sum())
        self.canvases.append(self.computed.canvas)
        self.windows.append(self.state.window)

    def _state(self, computed: Computed, step: int) -> State:
        model, canvas, end = self.model, computed.canvas, self.prompt_end
        size, past = canvas.shape[1], computed.past
        more: dict[str, Any] = {}
        first, stop = past, size
        if model.block is not None:
            more["ends"] = [size] * len(canvas)
        fresh = computed.fresh
        if past and not self._accumulates:
            fresh = torch.zeros_like(canvas, dtype=torch.bool)
            fresh[:, past:] = True
        if fresh is not None:
            if self._accumulates:
                raise UsageError(
                    f"a cache whose entries are replaced, in a network that is {model.direction}",
                    "Watch it without that cache.",
                )
            columns = fresh.any(0).nonzero()
            first, stop = int(columns[0]), int(columns[-1]) + 1
            more |= {"rows": (first, stop), "fresh": fresh}
            self.approximate = True
        elif past or model.mask_id is None:
            more["new"] = size - past
        if model.mask_id is None:
            window = (size, size + 1)
        else:
            low = min(max(end, first + model.shift, self._block_start(canvas)), size)
            window = (low, max(low, min(stop + model.shift, size)))
        predicting = None
        if window[0] == window[1]:  # nothing is decided
            predicting = (stop - first - 1, stop - first)
        return State.of(
            *(model, self.prompts, canvas, window),
            prompt_end=end,
            step=step,
            predicting=predicting,
            **more,
        )

    def _block_start(self, canvas: Int[Tensor, "b k"]) -> int:
        """Find the column at which the block with the first mask begins; 0 for a model without blocks."""
        model, end = self.model, self.prompt_end
        if model.block is None or model.mask_id is None:
            return 0
        masked = (canvas[:, end:] == model.mask_id).any(0).nonzero()
        if not len(masked):
            return 0
        padding, prompt = self._offsets[0], len(self.prompts[0].ids)
        first, offset = prompt + int(masked[0]), model.grid.offset(model.block, prompt)
        return padding + block_start(first, model.block, offset)

    def _decide(self, canvas: Int[Tensor, "b k"] | None) -> None:
        """Tell the recorder what the last forward revealed, now that the next canvas is known."""
        low, high = self.windows[-1]
        if low == high:
            return
        n = len(self.prompts)
        revealed = torch.zeros(n, high - low, dtype=torch.bool, device=self.canvas.device)
        token = torch.zeros_like(revealed, dtype=torch.long)
        if canvas is not None and canvas.shape[1] >= high:
            token = canvas[:, low:high]
            if self.model.mask_id is None:
                revealed[:] = True
            else:
                was = self.canvas[:, low:high] == self.model.mask_id
                revealed = was & (token != self.model.mask_id)
        with torch.inference_mode():
            self.recorder.committed(self.state, revealed, token)
            self.recorder.take_rows()  # before the loop writes into its cache

    def _settle(self, computed: Computed) -> None:
        """Keep the last forward's sums, or take them back where the cache did not keep its rows."""
        running, rollout = self.recorder.running, self.recorder.capture.rollout
        if not self._accumulates or not computed.past:
            running.total, self._undo = {}, {}
            if self._accumulates:
                rollout.kept, self._tail = {}, None
            return
        last, captured = self.computed, self.recorder.captured
        if computed.past == last.canvas.shape[1]:
            if not self.state.cached and captured is not None:  # the first forward, without a cache
                running.total, running.prompts = all_layers(captured), list(self.state.active)
            self._tail = self._next_tail
        elif computed.past == last.past:
            running.total = dict(self._undo)
        else:
            raise UsageError(
                f"a cache of {computed.past} positions after a forward that left "
                f"{last.canvas.shape[1]}",
                "Watch a loop that keeps all rows of a forward or none: not assisted generation.",
            )
        kept = rollout.kept.items()
        rollout.kept = {layer: (who, rows[:, : computed.past]) for layer, (who, rows) in kept}
        self._undo = dict(running.total)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Record one forward, which runs in the modes in which it was called."""
        inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        with (
            torch.inference_mode(),
            self.recorder.forward(self.state),
            torch.inference_mode(inference),
            torch.set_grad_enabled(gradients),
        ):
            yield

    def check_keys(self, call: seam.Call) -> None:
        """Refuse a forward with other rows and keys than its ids and cache told."""
        found, keys = (call.query.shape[2], call.key.shape[2]), self.state.visible.keys
        if found != (self.rows, keys):
            raise CaptureError(
                f"attention of {found[0]} rows over {found[1]} keys, where ids and cache tell of "
                f"{self.rows} over {keys}",
                "Say which columns the network computes: watch(..., rows=…).",
            )
        if not self.state.cached or call.layer != self.model.n_layers - 1:
            return
        past = self.computed.past
        known = self._tail if past else None
        if known is not None and not torch.equal(call.key[:, :, past - 1], known):
            raise CaptureError(
                "the cache is not the one that the last forward left",
                "Watch without beam search (num_beams=1), and one generation at a time.",
            )
        self._next_tail = call.key[:, :, -1].clone()

    def in_place(self, call: seam.Call) -> seam.Call:
        """Put a call's keys in the order of the canvas, and rows that do not count between its rows."""
        visible, fresh, order = self.state.visible, self.computed.fresh, self.computed.order
        if order is not None:
            at = order.argsort(1)[:, None, :, None]
            key, value = (t.gather(2, at.expand_as(t)) for t in (call.key, call.value))
            call = replace(call, key=key, value=value)
        if fresh is not None and visible.queries != call.query.shape[2]:
            some = fresh[:, visible.rows]  # (b, q)
            query = call.query.new_zeros(*some.shape, *call.query.shape[1::2])  # (b, q, h, d)
            query[some] = call.query.transpose(1, 2).flatten(0, 1)
            call = replace(call, query=query.transpose(1, 2))
        return replace(call, mask=None if call.mask is None else visible.mask)

    # Afterwards

    def close(self) -> None:
        """Take everything off the network, and free all but what the trace is made of."""
        if self.closed:
            return
        self.closed, recorder = True, self.recorder
        recorder.__exit__(None, None, None)
        recorder.running.total, recorder.capture.rollout.kept = {}, {}
        self._undo, self._tail, self._next_tail = {}, None, None
        for layer in recorder.captured.layers.values() if recorder.captured is not None else ():
            layer.values = {}

    def traces(self, result: Any) -> list[Trace]:
        """Make one trace for each prompt, once; guidance's second half is left out."""
        self.close()
        if self._traces and result is not None and not self._finished:
            raise UsageError(
                "the trace was made before the result was given",
                "Give it the first time: session.trace(result).",
            )
        if not self._traces:
            n = len(self.prompts) // 2 if self.blind else len(self.prompts)
            final = self._checked(self.result if result is None else result, n)
            self._finished = final is not None
            self._decide(torch.cat([final, final]) if self.blind and final is not None else final)
            decodings = [self._decoding(b, final) for b in range(n)]
            for recorded, one in zip(self.recorder.recorded, decodings, strict=False):
                size = one.canvas.shape[1]
                cut = [old[:size] for old in recorded.stale]  # a text that ended early is shorter
                recorded.stale = [np.pad(old, (0, size - len(old))) for old in cut]
            self._traces = self.recorder.traces(decodings)
            self.recorder.captured = None
        return self._traces

    def _checked(self, final: Any, n: int) -> Int[Tensor, "n s"] | None:
        """Check the ids that a loop returned, and cut them to what the last forward could reveal."""
        if final is None:
            return None
        last, end = self.canvas[:n], self.prompt_end
        final = torch.as_tensor(final).to(last.device)
        final = final[None] if final.ndim == 1 else final
        width = last.shape[1] + (self.model.mask_id is None)
        same = last.shape[1] if self.model.mask_id is None else end
        fits = final.ndim == 2 and len(final) == n and final.shape[1] >= last.shape[1]
        if not fits or not torch.equal(final[:, :same], last[:, :same]):
            raise UsageError(
                f"result {tuple(final.shape)} does not continue the canvas {tuple(last.shape)}",
                "Give the ids that this generation's loop returned, with its prompt.",
            )
        return final[:, :width]

    def _decoding(self, b: int, final: Int[Tensor, "n s"] | None) -> Decoding:
        model, offset, prompt = self.model, self._offsets[b], self.prompts[b]
        states = [one[b, offset:].tolist() for one in self.canvases]
        states.append(states[-1] if final is None else final[b, offset:].tolist())
        canvas = np.full((len(states), max(map(len, states))), ABSENT, dtype=np.int64)
        for t, ids in enumerate(states):
            canvas[t, : len(ids)] = ids
        block, start = np.array(self.windows) - offset, len(prompt.ids)
        masked = canvas[-1] == (ABSENT if model.mask_id is None else model.mask_id)
        ended = "unfinished" if final is None or masked.any() else "complete"
        if model.mask_id is None and (steps := _steps_to_end(canvas[-1, start:], model.end_ids)):
            canvas, block, ended = canvas[: steps + 1, : start + steps], block[:steps], "eos"
        cache = None
        if model.is_diffusion and self.cached:
            cache = "approximate" if self.approximate else "exact"
        return decoding_of(model, prompt, canvas, block, ended, cache)


def _steps_to_end(answer: Int[np.ndarray, " n"], ends: Sequence[int]) -> int:
    """Count the steps to an end token behind which there is nothing but padding; 0: there is none."""
    found = np.flatnonzero(np.isin(answer, ends))
    if not len(found) or len(set(answer[found[0] + 1 :].tolist())) > 1:
        return 0
    return int(found[0]) + 1


def _make_room(recorder: Recorder, steps: int, sizes: Sequence[int]) -> None:
    """Let the recorder keep so many steps, and each prompt so many positions, or more where it grows."""
    recorder.steps = range(steps)
    for recorded, size in zip(recorder.recorded, sizes, strict=True):
        if size > recorded.shape.size:
            recorded.shape = replace(recorded.shape, size=size + size // 2)
