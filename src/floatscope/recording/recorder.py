"""The Recorder, a watcher that captures every forward of a decoding and builds Traces.

The Recorder combines the captured statistics (tensors of a padded batch, on the model's device) with the
decisions of the decoding.
"""

import math
import warnings
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attention import Capture, Captured
from ..decode.blocks import max_steps
from ..decode.loop import AnySampler
from ..decode.state import State, Watcher
from ..errors import UsageError
from ..models import Model, graphs, parts
from ..models.placing import PendingCopy
from ..models.select import chosen
from ..sequences.decoding import Decoding
from ..sequences.prompt import Encoded
from ..statistics import STATISTICS
from ..trace import Trace, readable
from ..trace.trace import SCHEMA
from ..trace.unfinished import Unfinished
from .dataset import DatasetBuilder
from .host_memory import host_memory
from .kept import KeptSteps, PromptRecord, RevealedRows, StoredSteps
from .labelling import Labelling
from .options import TraceOptions
from .packing import Packing
from .step_record import Consumer, Shape, batch_values, step_records
from .sums import FixedSums, Joining, RunningSums, alone, place_rows
from .transfer import HostCopier

_LARGE = 8_000_000_000


class Recorder(Watcher):
    """Recorder of one batch. Use it as a context manager around `decode`, then call `traces`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Encoded],
        sampler: AnySampler,
        options: TraceOptions | None = None,
        to: Sequence[Path] | None = None,
    ) -> None:
        self.model, self.prompts, self.sampler = model, prompts, sampler
        self.options = options = options or TraceOptions()
        self.keep, self.by_region = options.kept_statistics, options.by_region
        self.layers = chosen(options.layers, model.n_layers, "layer")
        self.heads = chosen(options.heads, model.n_heads, "head")
        _require_experts(model, self.keep, self.layers)
        steps = chosen(options.steps, max_steps(model, sampler), "step")
        self.steps: Collection[int] = frozenset(steps)
        self.dtype, self.torch_dtype = np.dtype(options.dtype), getattr(torch, options.dtype)
        self.labelling = Labelling(model, prompts, self.keep, self.by_region)
        self.capture = Capture(model, self.keep, self.layers, self.heads, options.top)
        self.builder = DatasetBuilder(model, sampler, self.layers, self.heads)
        self.packing = Packing(self.capture)
        self.copier = HostCopier(model.device)
        paths = [None] * len(prompts) if to is None else to
        self.recorded = [self._record_of(b, path) for b, path in enumerate(paths)]
        self.consumers: list[list[Consumer]] = [[record.step_store] for record in self.recorded]
        self.revealed = RevealedRows(self.recorded, self.dtype, self.copier)
        self.running = RunningSums()
        self.fixed: FixedSums | None = None  # replaces `running` while the cache has fixed size
        self._kind: Hashable = None  # FixedSums.kind of `fixed`
        self._fixed_for: tuple[int, list[int]] = (0, [])  # columns and prompts of `fixed`
        self.captured: Captured | None = None
        self._decisions: list[
            tuple[State, Captured, PendingCopy, PendingCopy]
        ] = []  # not stored yet
        if to is None:
            self._warn_if_large()

    def __enter__(self) -> "Recorder":
        self.capture.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._give_sums()  # while this thread still owns the network
        self.capture.__exit__(*exc)
        self._settle()

    # Watching

    def part(self) -> Packing:
        return self.packing

    def trims(self) -> bool:
        return True

    def forward(self, state: State) -> AbstractContextManager[object]:
        # Steps that are not kept are still watched if later steps need their sums or rollout.
        settles = state.cached and state.settled != 0
        rolls = state.approximate and "rollout" in self.keep
        if state.step in self.steps or settles or rolls:
            return self._watch(state)
        return nullcontext()

    @contextmanager
    def _watch(self, state: State) -> Iterator[None]:
        forward = self.labelling.forward(state, state.step in self.steps)
        self._fix_sums(state)
        self.packing.results = None
        self.copier.ready()
        with self.capture.forward(forward) as captured:
            yield
        self.copier.send()  # copy the previous step while this one runs
        packed = self.packing.results
        if packed is not None:
            captured = packed.rows_of(captured)
        self.captured = captured
        values = iter(packed.values) if packed else batch_values(captured, self._joining(state))
        if state.step not in self.steps:
            if state.cached:
                deque(values, maxlen=0)  # update the running sums
            return
        places = [
            (self.recorded[b].shape, slice(*self._columns_of(b, state))) for b in state.active
        ]
        records = step_records(
            *(state.step, state.canvas, values, places, self.torch_dtype),
            first_predicted=captured.first_predicted,
            unused=packed.unused if packed else None,
        )
        for b, record in zip(state.active, records, strict=True):
            for consumer in self.consumers[b]:
                consumer.step(record)
        self._note_age(state)

    def _joining(self, state: State) -> Joining:
        """Return the function that joins the rows of this forward to those of earlier forwards."""
        assert self.captured is not None
        all_settle = self.captured.settled is None
        if self.fixed is not None and state.visible.row_columns is not None:
            join = self.fixed.join(all_settle, state.visible.row_columns)
            return lambda *arrays: join(*arrays).clone()  # the next forward overwrites it
        if state.cached:
            self.running.only(state.active)
            return self.running.join(all_settle)
        if state.fresh is not None:
            return place_rows(state.fresh, state.visible.rows)
        return alone

    def _fix_sums(self, state: State) -> None:
        """Move the running sums to fixed addresses for a fixed-size cache, and back for a growing cache."""
        size, prompts = state.visible.keys, list(state.active)
        is_fixed = state.visible.row_columns is not None
        if self.fixed is not None and not (is_fixed and (size, prompts) == self._fixed_for):
            first = state.visible.first_row
            self.running.total = self.fixed.leave(first)
            self.capture.rollout.unfix(self.running.prompts, first)
            self._give_sums()
        if is_fixed and self.fixed is None:
            self.running.only(prompts)
            totals, states = self.running.total, self.capture.rollout.select_states(prompts)
            self._kind, self._fixed_for = FixedSums.kind(totals, states, size), (size, prompts)
            store = graphs.store_of(self.model.net)
            sums = store.take(self._kind, lambda: FixedSums.allocate(totals, states, size))
            sums.enter(totals, states)
            self.running.total, self.capture.rollout.fixed = {}, sums.states
            self.fixed = self.packing.sums = sums

    def _give_sums(self) -> None:
        if self.fixed is not None:
            graphs.store_of(self.model.net).give(self._kind, self.fixed)
            self.fixed = self.packing.sums = None

    def receive_decision(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        if "rows" not in self.keep or state.step not in self.steps or self.captured is None:
            return
        # On a GPU the previous step's decision has reached the host; the current one has not.
        self.store_revealed_rows()
        decision = (state, self.captured.detached(), PendingCopy(revealed), PendingCopy(token))
        self._decisions.append(decision)
        # A replayed forward computes rows from tensors that the next replay overwrites.
        overwritten = self.packing.results is not None and bool(self.packing.results.held_layers)
        if state.visible.row_columns is not None:  # a fixed-size cache overwrites its keys
            held_rows = [layer.held_rows for layer in self.captured.layers.values()]
            overwritten = overwritten or any(rows is not None for rows in held_rows)
        if not revealed.is_cuda or overwritten:
            self.store_revealed_rows()

    def store_revealed_rows(self) -> None:
        """Store the attention rows that predicted the positions revealed so far."""
        decisions, self._decisions = self._decisions, []
        for state, captured, revealed_copy, token_copy in decisions:
            revealed, token = revealed_copy.wait(), token_copy.wait()
            columns = [prompt.nonzero().squeeze(-1) for prompt in revealed]
            if not any(map(len, columns)):
                continue
            rows = captured.rows(columns)
            prompts: list[int] = []
            paddings: list[int] = []
            for place, (b, new_columns) in enumerate(zip(state.active, columns, strict=True)):
                padding, _ = self._columns_of(b, state)
                first = state.window[0] - padding
                new_tokens = token[place, new_columns].tolist()
                for w, new in zip(new_columns.tolist(), new_tokens, strict=True):
                    self.recorded[b].events.append((state.step, first + w, new))
                prompts += [b] * len(new_columns)
                paddings += [padding] * len(new_columns)
            self.revealed.add(rows, prompts, paddings)

    def _note_age(self, state: State) -> None:
        """Record which keys an approximate cache did not recompute in this step."""
        for place, b in enumerate(state.active):
            columns = slice(*self._columns_of(b, state))
            stale = np.zeros(columns.stop - columns.start, bool)
            if state.fresh is not None:
                stale = ~state.fresh[place, columns].cpu().numpy()
            self.recorded[b].stale.append(stale)

    @torch.inference_mode()  # the rows are inference tensors
    def _settle(self) -> None:
        self.store_revealed_rows()
        self.revealed.send()
        self.copier.settle()
        for consumers in self.consumers:
            for consumer in consumers:
                consumer.finish()

    def _columns_of(self, b: int, state: State) -> tuple[int, int]:
        """Return the first and past-the-last column of a prompt: after its padding, up to its current end."""
        stop = state.canvas.shape[1]
        if state.ends is not None:
            stop = state.ends[list(state.active).index(b)]
        return state.prompt_end - len(self.prompts[b].ids), stop

    # Afterwards

    def traces(self, decodings: Sequence[Decoding]) -> list[Trace]:
        """Return one Trace per prompt, in order."""
        self._settle()  # if the recorder was not used as a context manager
        return [self._trace(b, decoding) for b, decoding in enumerate(decodings)]

    def _trace(self, b: int, decoding: Decoding) -> Trace:
        recorded = self.recorded[b]
        data = self.builder.assemble(decoding, recorded)
        if isinstance(recorded.step_store, KeptSteps):
            return Trace(data)
        return Trace.load(recorded.step_store.store.finish(data, SCHEMA), lazy=True)

    def _record_of(self, b: int, path: Path | None) -> PromptRecord:
        names, groups = self.labelling.names[b], self.labelling.group_names(b)
        regions = (*range(2, len(names)), 0, 1)  # regions of the prompt, then masked and revealed
        shape = Shape(
            size=len(self.prompts[b].ids) + self.sampler.length,
            regions=regions,
            groups=len(groups),
            region_names=tuple(names[i] for i in regions),
            group_names=tuple(groups),
        )
        room = len(self.steps)
        if path is None:
            empty = host_memory().empty if self.model.device.type == "cuda" else np.empty
            return PromptRecord(shape, KeptSteps(self.copier, room, empty))
        about = self.builder.begin(self.prompts[b], shape)
        return PromptRecord(shape, StoredSteps(self.copier, Unfinished(path, room, about), shape))

    def _warn_if_large(self) -> None:
        size = max(len(p.ids) for p in self.prompts) + self.sampler.length
        regions = self.labelling.n_regions
        sizes = {"layer": len(self.layers), "head": len(self.heads), "key": size, "query": size}
        sizes |= {"source": regions, "target": regions, "group": regions if self.by_region else 3}
        arrays = [array for array in STATISTICS.arrays(self.keep).values() if array.stored]
        cells = sum(math.prod(sizes.get(dim, 1) for dim in array.dims) for array in arrays)
        total = cells * len(self.steps) * self.dtype.itemsize * len(self.prompts)
        if total > _LARGE:
            remedy = "Use keep=, layers=, heads=, steps=, smaller batches or dtype='float16'."
            warnings.warn(
                f"these traces will need about {readable(total)} of memory. {remedy}", stacklevel=2
            )


def _require_experts(model: Model, keep: Collection[str], layers: Sequence[int]) -> None:
    """Raise UsageError if `keep` names experts but no chosen layer has experts.

    If `keep` contains every statistic, the statistic "experts" is left out and no error is raised.
    """
    routed = parts.routers(model.net)
    named = "experts" in keep and set(keep) != set(STATISTICS)
    if named and not set(layers) & set(routed):
        choices = f"layers {', '.join(map(str, routed))} of {model.name}" if routed else ""
        problem = f"{model.name} has no experts in these layers"
        raise UsageError(
            problem, f"Choose from {choices}." if choices else "Leave 'experts' out of keep."
        )
