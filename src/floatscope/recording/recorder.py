"""The Recorder: a watcher that captures every forward of a decoding and turns it into Traces.

Here meet what the capture saw (tensors of a padded batch, on the model's device) and what the
decoding decided; out come labelled arrays, one Trace per prompt, without padding.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import Capture, Captured, Forward, Labels
from ..decode.loop import AnySampler
from ..decode.state import State, Watcher
from ..models import Model
from ..models.placing import constant
from ..sequences.decoding import Decoding
from ..sequences.prompt import Encoded
from ..trace import Trace, readable
from .cache import RunningSums
from .dataset import assemble
from .options import TraceOptions
from .steps import PromptRecord, record
from .transfer import Outbox

# Labels 0 and 1 of every position; the prompt's own regions follow.
MASKED, REVEALED = "masked", "revealed"
_LARGE = 8_000_000_000


class Recorder(Watcher):
    """Records one batch. Use as a context manager around `decode`, then call `traces`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Encoded],
        sampler: AnySampler,
        options: TraceOptions | None = None,
    ) -> None:
        self.model, self.prompts, self.sampler = model, prompts, sampler
        self.options = options = options or TraceOptions()
        self.keep, self.by_region = options.kept, options.by_region
        self.layers, self.heads = options.kept_layers(model), options.kept_heads(model)
        self.steps = options.kept_steps(sampler.n_steps)
        self.dtype = np.dtype(options.dtype)
        self.names = [(MASKED, REVEALED, *p.names) for p in prompts]
        self.n_regions = max(map(len, self.names))
        self.capture = Capture(model, self.keep, self.layers, self.heads, options.top)
        self.recorded = [self._record_of(b) for b in range(len(prompts))]
        self.outbox = Outbox(model.device)
        self.running = RunningSums()
        self.prompt_region = _prompt_regions(prompts, self.names).to(model.device)
        self.captured: Captured | None = None
        self._undecided: list[_Decision] = []  # whose rows are not taken yet
        self._warn_if_large()

    def __enter__(self) -> "Recorder":
        self.capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.capture.__exit__(*exc)
        self._take_rows()
        self.outbox.settle()

    # Watching

    def part(self) -> Capture:
        return self.capture

    def forward(self, state: State) -> AbstractContextManager[object]:
        # With a cache, sums accumulate: every step must be seen even if only some are kept.
        if state.step not in self.steps and not state.cached:
            return nullcontext()
        return self._watch(state)

    @contextmanager
    def _watch(self, state: State) -> Iterator[None]:
        forward = self._forward(state)
        with self.capture.forward(forward) as captured:
            yield
        self.captured = self.running.add(captured) if state.cached else captured
        if state.step in self.steps:
            width = state.canvas.shape[1]
            places = [(self.recorded[b], width - self._size(b, state)) for b in state.active]
            record(state.step, self.captured, places, self.dtype, self.outbox)

    def committed(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        if "rows" not in self.keep or state.step not in self.steps or self.captured is None:
            return
        # On a GPU the step before is decided by now, and this one is not: nobody waits.
        self._take_rows()
        self._undecided.append(_Decision(state, self.captured.settled(), revealed, token))
        if not revealed.is_cuda:
            self._take_rows()

    def _take_rows(self) -> None:
        """The rows behind what was revealed."""
        decisions, self._undecided = self._undecided, []
        for one in decisions:
            self._take_rows_of(one.state, one.captured, *one.on_the_host())

    def _take_rows_of(
        self,
        state: State,
        captured: Captured,
        revealed: Bool[Tensor, "b w"],
        token: Int[Tensor, "b w"],
    ) -> None:
        which = [one.nonzero().squeeze(-1) for one in revealed]
        if not any(map(len, which)):
            return
        every = captured.rows(which)
        for place, (b, some, rows) in enumerate(zip(state.active, which, every, strict=True)):
            if len(some):
                padding = len(state.canvas[0]) - self._size(b, state)
                first = state.window[0] - padding
                at = [(first + w, int(token[place, w])) for w in some.tolist()]
                self.recorded[b].reveal(state.step, at, rows, padding, self.dtype, self.outbox)

    def _size(self, b: int, state: State) -> int:
        return len(self.prompts[b].ids) + state.canvas.shape[1] - state.prompt_end

    def _forward(self, state: State) -> Forward:
        answer = state.masked[:, state.prompt_end :].logical_not().long()  # 0 masked, 1 revealed
        region = torch.cat(
            [self.prompt_region[constant(state.active, answer.device)], answer], dim=1
        )
        of_query = region[:, -state.visible.queries :]
        if self.by_region:
            group, n_groups = of_query, self.n_regions
        elif "groups" in self.keep:
            group, n_groups = of_query.clamp(max=2), 3  # masked, revealed, prompt
        else:
            group, n_groups = of_query.clamp(max=0), 1
        return Forward(
            visible=state.visible,
            labels=Labels(group, n_groups, region, self.n_regions),
            rows=state.predicting,
            cached=state.cached,
            prompts=state.active,
            predicted=self._predicted(state) if "lens" in self.keep else None,
        )

    def _predicted(self, state: State) -> tuple[int, Int[Tensor, " w"], Bool[Tensor, "b w"]]:
        """All masked positions of the answer; with a cache, the next one."""
        device = state.canvas.device
        if state.cached:
            start, stop = state.window
            wanted = torch.ones(len(state.canvas), 1, dtype=torch.bool, device=device)
        else:
            start, stop = state.prompt_end, state.canvas.shape[1]
            wanted = state.masked[:, start:]
        behind = self.model.shift + state.visible.keys - state.visible.queries
        rows = torch.arange(start, stop, device=device) - behind
        return start, rows.clamp(min=0), wanted

    # Afterwards

    def traces(self, decodings: Sequence[Decoding]) -> list[Trace]:
        """One Trace per prompt, in order."""
        self._take_rows()
        self.outbox.settle()  # where the recorder was not used as a context
        return [
            Trace(
                assemble(
                    self.model,
                    self.sampler,
                    decoding,
                    recorded,
                    self.layers,
                    self.heads,
                    self._group_names(b),
                    self.names[b],
                )
            )
            for b, (decoding, recorded) in enumerate(zip(decodings, self.recorded, strict=True))
        ]

    def _record_of(self, b: int) -> PromptRecord:
        return PromptRecord(
            room=len(self.steps),
            size=len(self.prompts[b].ids) + self.sampler.length,
            groups=len(self._group_names(b)),
            # The prompt's regions first, then the two states of the answer.
            regions=[*range(2, len(self.names[b])), 0, 1],
        )

    def _group_names(self, b: int) -> tuple[str, ...]:
        if self.by_region:
            return self.names[b]
        return (MASKED, REVEALED, "prompt") if "groups" in self.keep else ("all",)

    def _warn_if_large(self) -> None:
        size = max(len(p.ids) for p in self.prompts) + self.sampler.length
        per_head = {
            "mass": 1,
            "groups": self.n_regions if self.by_region else 3,
            "entropy": 1,
            "qk": 4,
            "value_norm": 1,
        }
        numbers = sum(n for name, n in per_head.items() if name in self.keep)
        numbers -= {"mass", "groups"} <= self.keep  # one array serves both
        cells = len(self.steps) * len(self.layers) * len(self.heads) * size
        total = cells * numbers * self.dtype.itemsize * len(self.prompts)
        if total > _LARGE:
            warnings.warn(
                f"these traces will take about {readable(total)} of memory. Keep less with keep=, "
                "layers=, heads= or steps=, smaller batches, or dtype='float16'.",
                stacklevel=2,
            )


class _Decision:
    """What a step has decided, on its way to the host."""

    def __init__(
        self,
        state: State,
        captured: Captured,
        revealed: Bool[Tensor, "b w"],
        token: Int[Tensor, "b w"],
    ) -> None:
        self.state, self.captured = state, captured
        self._both = tuple(one.to("cpu", non_blocking=one.is_cuda) for one in (revealed, token))
        self._arrived = None
        if revealed.is_cuda:
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def on_the_host(self) -> tuple[Bool[Tensor, "b w"], Int[Tensor, "b w"]]:
        if self._arrived is not None:
            self._arrived.synchronize()
        revealed, token = self._both
        return revealed, token


def _prompt_regions(
    prompts: Sequence[Encoded], names: Sequence[tuple[str, ...]]
) -> Int[Tensor, "b p"]:
    width = max(len(p.ids) for p in prompts)
    region = torch.full((len(prompts), width), -1)
    for b, prompt in enumerate(prompts):
        at = {name: i for i, name in enumerate(names[b]) if i >= 2}
        region[b, width - len(prompt.ids) :] = torch.tensor([at[r] for r in prompt.regions])
    return region
