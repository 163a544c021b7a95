"""Measure the attention of every layer of a network while the network runs.

`with Capture(model, ...) as capture:` attaches a handler to the attention hook. Each forward runs in a `with`
block of `capture.forward(forward)`, which yields the captured statistics by layer and raises an error if a
layer was missed. The output of the network is that of stock attention, bit for bit.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import CaptureError
from ..models import Model, Visibility, attention_hook, parts
from ..models.devices import moved
from ..models.graphs import CannotReplay
from ..models.placing import constant
from ..statistics import STATISTICS, Compute, Join, Statistic
from . import backend, lens
from .captured import Candidates, Captured, Layer, hold
from .cpu import norms
from .cpu.layer_batch import LayerBatch
from .forward import Forward
from .gpu.side_stream import SideStream
from .rollout import Rollout
from .shapes import Arrays, Labels, View, exactly
from .weight_free import KVDrift, massive, routed_experts

# Statistics that a recorded and replayed forward cannot compute, and why.
_LAUNCHED = {
    "lens": "keep has 'lens', which looks at as many positions as are still masked",
    "kv_drift": "keep has 'kv_drift', which compares a forward with the one before",
}
_WEIGHED = {name for name, row in STATISTICS.items() if row.needs_weights}
_SUMMED = _WEIGHED - {"rollout", "rows"}  # sums over the weights of one layer
_COLUMN_SUMS = {"mass", "groups", "head_mean"}
_ENTROPIES = {"entropy", "entropy_mean"}


@dataclass(eq=False)
class Capture:
    """Context manager that measures the statistics in `keep` for the chosen layers and heads."""

    model: Model
    keep: Collection[str]
    layers: Sequence[int]
    heads: Sequence[int]
    top: int = 8
    foreign: bool = False  # keys and values are in a cache of other code
    _forward: Forward | None = None
    _layers: dict[int, Layer] = field(default_factory=dict)
    _calls: int = 0
    rollout: Rollout = field(default_factory=Rollout)
    _settled: dict[int, Layer] = field(default_factory=dict)
    _kv_drift: KVDrift = field(default_factory=KVDrift)
    _open: ExitStack = field(default_factory=ExitStack)
    _hooks: list[Any] = field(default_factory=list)  # hooks registered on the network
    _modules: list[nn.Module] = field(default_factory=list)
    _itself: object = field(default_factory=object)  # unique key
    _weights: Hashable = None  # versions of the weights behind the factors of value norms
    _side_stream: SideStream | None = None  # while a forward is recorded on a GPU
    _waiting: list["_LayerCall"] = field(default_factory=list)  # layers still to be measured
    _batch: LayerBatch = field(default_factory=LayerBatch)  # small layers, measured together

    branches: ClassVar[bool] = True  # record statistics on a second stream

    def __enter__(self) -> "Capture":
        net = self.model.net
        self._modules = attention_hook.attention_modules(net)
        self._open.enter_context(norms.trusting(self._modules))
        if "lens" in self.keep:
            self._open.enter_context(lens.proving(self.model))
        self._open.enter_context(attention_hook.lock_network(net))
        self._open.enter_context(attention_hook.attach(net, self._observe_call, innermost=True))
        for layer, block in enumerate(parts.layers(net)):
            if {"residual_norm", "massive"} & set(self.keep):
                self._hooks.append(self._residual(layer))
                handle = block.register_forward_pre_hook(self._hooks[-1], with_kwargs=True)
                self._open.enter_context(handle)
            if "lens" in self.keep:
                self._open.enter_context(block.register_forward_hook(self._through_lens(layer)))
        for layer, router in parts.routers(net).items() if "experts" in self.keep else ():
            self._open.enter_context(router.register_forward_hook(self._routed(layer)))
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    @contextmanager
    def forward(self, forward: Forward) -> Iterator[Captured]:
        """Yield the results of exactly one forward; they are complete when the `with` block ends.

        Raises CaptureError if the number of attention calls differs from the number of layers.
        """
        self._forward, self._calls = forward, 0
        self.rollout.begin()
        self._layers = {layer: Layer() for layer in self.layers}
        self._settled = {}
        try:
            first = 0 if forward.predicted is None else forward.predicted[0]
            settled = None if forward.settled is None else self._settled
            yield Captured(self._layers, forward.labels, self.top, first, settled, forward.partial)
            self._measure_waiting()
            if self._calls != self.model.n_layers:
                problem = f"{self._calls} attention calls seen in a forward of {self.model.n_layers} layers"
                remedy = "Another library may have replaced the model's attention; load it afresh."
                raise CaptureError(problem, remedy)
        finally:
            self._forward = None
            self._waiting.clear()
            self._batch.clear()

    # Interface for forwards that are recorded and replayed (`models/graphs.py`)

    def key(self) -> Hashable:
        forward = self._forward
        if forward is None:
            return "looks on"
        for name, reason in _LAUNCHED.items():
            if name in self.keep:
                raise CannotReplay(reason)
        if forward.cached and forward.visible.row_columns is None:
            raise CannotReplay("a step with a cache has as many keys as there are tokens")
        weights: Hashable = None
        if "value_norm" in self.keep:  # the graph contains factors of the weights
            if self._weights is None:  # weights do not change while attached
                self._weights = norms.versions(self._modules) or self._itself
            weights = self._weights
        return (
            *(frozenset(self.keep), tuple(self.layers), tuple(self.heads), self.top, weights),
            *(forward.labels.n_groups, forward.labels.n_regions),
            forward.rows if "rows" in self.keep else None,
            *(forward.cached, forward.settled, self.branches),
            STATISTICS.version,
        )

    def owns(self, handler: object) -> bool:
        return handler == self._observe_call or any(handler is hook for hook in self._hooks)

    def launching(self) -> float:
        """Return the time, in seconds per layer, that Python needs to launch the statistics.

        Measured on an H200's host: 0.6 ms for mass, 1.7 ms for all statistics.
        """
        return 0.0 if self._forward is None else 0.6e-3 + 0.14e-3 * (len(self.keep) - 1)

    def inputs(self) -> Arrays:
        labels = None if self._forward is None else self._forward.labels
        return {} if labels is None else {"group": labels.group, "region": labels.region}

    @contextmanager
    def recording(self, inputs: Arrays, visible: Visibility) -> Iterator[Captured | None]:
        """Yield the results of a forward while it is recorded; None if no forward is being captured."""
        forward, layers = self._forward, self._layers
        if forward is None:
            yield None
            return
        group, region = inputs["group"], inputs["region"]
        labels = replace(forward.labels, group=group, region=region, columns=visible.row_columns)
        states = self.rollout.cached_states
        self.rollout.cached_states = {}  # no earlier forward counts
        # An intervention may read the results of a branch before the branch ends.
        if self.model.device.type == "cuda" and not self.model.edits and self.branches:
            self._side_stream = SideStream()
        try:
            with self.forward(replace(forward, visible=visible, labels=labels)) as captured:
                yield captured
            self._join()
        finally:  # the forward itself runs after its recording
            self._forward, self._layers, self._calls, self._side_stream = forward, layers, 0, None
            self.rollout.cached_states = states
            self.rollout.begin()

    def replayed(self, layers: dict[int, Layer]) -> None:
        """Store a replayed forward's results by layer, because a replay does not call the attention hook."""
        if self._forward is not None:
            self._layers.update({layer: replace(results) for layer, results in layers.items()})
            self._calls = self.model.n_layers

    def _branch(self, *read: Tensor | None) -> AbstractContextManager[None]:
        return nullcontext() if self._side_stream is None else self._side_stream.branch(*read)

    def _join(self) -> None:
        if self._side_stream is not None:
            self._side_stream.join()

    def _residual(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._forward is not None and layer in self._layers:
                x = args[0] if args else kwargs["hidden_states"]
                values = self._layers[layer].values
                with self._branch(x), exactly(x):
                    if "residual_norm" in self.keep:
                        values["residual_norm"] = backend.vector_norms(x)
                    if "massive" in self.keep:
                        values["massive"], values["massive_channel"] = massive(x)

        return hook

    def _through_lens(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            forward = self._forward
            if forward is None or forward.predicted is None or layer not in self._layers:
                return
            x = lens.output_of(output)
            _, rows, selected = moved(forward.predicted, x.device)
            with exactly(x):
                self._layers[layer].values |= lens.predicted(self.model, x, rows, selected)

        return hook

    def _routed(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            forward = self._forward
            if forward is not None and layer in self._layers:
                chosen = routed_experts(output, len(forward.visible.padding))
                values = dict(zip(("expert", "expert_weight"), chosen, strict=True))
                self._layers[layer].values |= values
                if layer in self._settled:  # created at attention, before routing
                    rows = {name: x[..., : forward.settled] for name, x in values.items()}
                    self._settled[layer].values |= rows

        return hook

    def _observe_call(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        forward = self._forward
        if forward is None:  # not captured, such as the second forward of guidance
            return proceed(call)
        forward = forward.on(call.query.device).within(self.model.reaches[call.layer])
        self._calls += 1
        is_chosen = call.layer in self._layers
        rolling = "rollout" in self.keep
        if not is_chosen and not rolling:
            return proceed(call)
        self._join()
        with backend.capture_lse(call) as captured_lse:
            output = proceed(call)
        lse = captured_lse.lse(call.query)
        alone = self._summed_alone and not forward.cached
        if lse is not None and alone and self._batch.is_small(call):
            if not self._batch.fits(call, forward):
                self._measure_together()
            self._batch.add(call, forward, lse)
            return output
        layer_call = _LayerCall(call, forward, lse, is_chosen)
        if self._may_wait(layer_call):
            self._waiting.append(layer_call)
            return output
        read = (call.query, call.key, call.value, call.mask, layer_call.lse)
        with self._branch(*read), exactly(call.query):
            self._measure(layer_call)
        return output

    def _may_wait(self, layer_call: "_LayerCall") -> bool:
        """Return whether to measure this layer after the forward instead of at once.

        Layers of forwards with a cache on a CPU are measured after the forward. Measuring a layer of 32 rows
        takes 160 µs between two layers of the network, and 90 µs right after another measurement. In a
        forward without a cache, storing keys and values until the end takes more time than this order saves.
        """
        routed = "experts" in self.keep  # experts of settling rows are known only later
        on_gpu = backend.on_gpu(layer_call.call.query)
        return layer_call.forward.cached and not routed and not on_gpu

    @torch.inference_mode()
    def _measure_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for layer_call in waiting:
            with exactly(layer_call.call.query):
                self._measure(layer_call)
        self._measure_together()

    @cached_property
    def _summed_alone(self) -> bool:
        """Whether attention calls are measured for sums over one layer's weights (`_SUMMED`) alone."""
        measured = [n for n in self.keep if n in _WEIGHED or n == "kv_drift" or _function(n)]
        return 0 < len(measured) == len(_SUMMED & set(self.keep))

    @torch.inference_mode()
    def _measure_together(self) -> None:
        batch, keep = self._batch, self.keep
        if not batch.layers:
            return
        view, forward = batch.view()
        with exactly(view.query):
            if len(self.heads) < view.query.shape[1]:
                view = _select_heads(view, constant(self.heads, view.query.device))
            entropy = not _ENTROPIES.isdisjoint(keep)
            sums = backend.sums(view, entropy=entropy, regions="flow" in keep)
            for number, layer_sums in batch.split_by_layer(sums).items():
                self._take_sums(layer_sums, slice(None), self._layers[number], Layer(), forward)
        batch.clear()

    def _view(self, layer_call: "_LayerCall", chosen: Sequence[int]) -> View:
        call, forward, state = layer_call.call, layer_call.forward, None
        if "rollout" in self.keep:
            state = self.rollout.before(forward, call.query.device)
        labels = forward.settled_groups if forward.settled else forward.labels
        view = View.from_call(call, forward.visible, labels, lse=layer_call.lse, state=state)
        if len(chosen) < call.query.shape[1]:
            view = _select_heads(view, constant(chosen, call.query.device))
        if not _WEIGHED.isdisjoint(self.keep):
            view = backend.with_lse(view, columns="qk" in self.keep)
        return view

    def _measure(self, layer_call: "_LayerCall") -> None:
        call, forward, is_chosen = layer_call.call, layer_call.forward, layer_call.is_chosen
        keep = self.keep
        # Rollout needs the mean over all heads in all layers, even if only some of them are kept.
        chosen = range(self.model.n_heads) if "rollout" in keep else self.heads
        view = self._view(layer_call, chosen)
        layer = self._layers.get(call.layer) or Layer()
        pick: slice | Tensor = slice(None)  # the kept heads among the measured ones
        if len(chosen) != len(self.heads):
            place = [list(chosen).index(h) for h in self.heads]
            pick = constant(place, call.query.device)
        n, part, best = forward.settled or 0, Layer(), None  # part: sums of settling rows
        if is_chosen and "rows" in keep:
            best = backend.strongest(view, forward.rows, self.top)
        at_once = best is not None
        if at_once or not (_WEIGHED - {"rows"}).isdisjoint(keep):
            by_region = forward.by_region if is_chosen and "flow" in keep and not at_once else None
            sums = backend.sums(
                view if by_region is None else replace(view, labels=by_region.labels),
                entropy=is_chosen and not _ENTROPIES.isdisjoint(keep),
                regions=is_chosen and ("flow" in keep or at_once) and by_region is None,
            )
            if by_region is not None:
                column_sum = sums["column_sum"]
                layer.values["flow"] = by_region.flow_sum(column_sum[:, :, pick])
                sums["column_sum"] = by_region.column_sum(column_sum)
            self._take_sums(sums, pick, layer, part, forward)
            if best is not None:
                flow = sums["region_sum"][:, pick, slice(*forward.rows)].clone()
                layer.candidates = Candidates(best[0][:, pick], best[1][:, pick], flow)
            if "rolled" in sums:
                state = self.rollout.after(call.layer, sums["rolled"], forward)
                new = forward.visible.of_rows(state, 1)
                from_region = forward.labels.from_region
                layer.values["rollout"] = backend.region_totals(from_region, new[:, None])[:, 0]
                if n:
                    settling = backend.region_totals(from_region[:, :n], new[:, None, :n])
                    part.values["rollout"] = settling[:, 0]  # (b, f, r)
        if not is_chosen:
            return
        for statistic, compute in self._computed:
            full_view = replace(view, labels=forward.labels) if n else view
            values = compute(full_view, call)
            if statistic.compute is not None:
                _require_arrays(statistic, values, view)
            layer.values |= self._select_kept_heads(statistic, values)
            if n and any(array.join is Join.SUM for array in statistic.arrays):
                of_settled = compute(replace(view, labels=forward.settling), call)
                part.values |= self._select_kept_heads(statistic, of_settled, Join.SUM)
        if n:
            arrays = STATISTICS.arrays()
            by_row = {k: v for k, v in layer.values.items() if arrays[k].join is Join.ROWS}
            part.values |= {name: values[..., :n] for name, values in by_row.items()}
            self._settled[call.layer] = part
        if "kv_drift" in keep:
            self._take_drift(call, forward, layer)
        if "rows" in keep and not at_once:
            head_view = view if isinstance(pick, slice) else _select_heads(view, pick)
            layer.held_rows = hold(head_view, *forward.rows)

    @cached_property
    def _computed(self) -> list[tuple[Statistic, Compute]]:
        """Pairs of a kept statistic and the function that computes it from one layer's attention."""
        kept_rows = ((name, row) for name, row in STATISTICS.items() if name in self.keep)
        functions = ((row, _function(name)) for name, row in kept_rows)
        return [(row, compute) for row, compute in functions if compute is not None]

    def _select_kept_heads(
        self, statistic: Statistic, values: Mapping[str, Tensor], join: Join | None = None
    ) -> Arrays:
        """Return a statistic's arrays for the kept heads; with `join`, only the arrays joined that way."""
        arrays = {}
        for array in statistic.arrays:
            tensor, axis = values[array.name], array.head_axis
            if axis is not None and tensor.shape[axis] != len(self.heads):
                tensor = tensor.index_select(axis, constant(self.heads, tensor.device))
            if join in (None, array.join):
                arrays[array.name] = tensor
        return arrays

    def _take_drift(self, call: attention_hook.Call, forward: Forward, layer: Layer) -> None:
        if forward.cached and forward.settled is None:  # cached keys do not change
            shape = (len(call.key), call.key.shape[2])
            nothing = torch.full(shape, torch.nan, device=call.key.device)
            layer.values |= {"key_drift": nothing, "value_drift": nothing}
        elif forward.step_kept:
            key, value = call.key, call.value
            # The next forward may overwrite these tensors.
            if self.foreign or forward.visible.row_columns is not None:
                stop = forward.visible.rows.stop
                key, value = key[:, :, :stop].clone(), value[:, :, :stop].clone()
            drift = self._kv_drift.update(call.layer, forward.prompts, key, value)
            layer.values |= dict(zip(("key_drift", "value_drift"), drift, strict=True))

    def _take_sums(
        self, sums: Arrays, pick: slice | Tensor, layer: Layer, part: Layer, forward: Forward
    ) -> None:
        """Store the sums of all rows in `layer`, and those of rows never computed again in `part`."""
        n = forward.settled or 0
        if not _COLUMN_SUMS.isdisjoint(self.keep):
            column_sum, settled = sums["column_sum"][:, :, pick], None
            if n:
                unsettled, settled = column_sum.split(forward.labels.n_groups, dim=1)
                column_sum = unsettled + settled
            for values, total in ((layer.values, column_sum), (part.values, settled)):
                if total is not None and not {"mass", "groups"}.isdisjoint(self.keep):
                    values["column_sum"] = total
                if total is not None and "head_mean" in self.keep:
                    values["column_mean"] = total.mean(2)
        if "entropy" in sums:
            entropy = sums["entropy"][:, pick] / forward.max_entropy
            if "entropy" in self.keep:
                layer.values["entropy"] = entropy
            if "entropy_mean" in self.keep:
                layer.values |= _by_group(entropy, forward.labels, forward.max_entropy)
                if n:
                    part.values |= _by_group(entropy, forward.settling, forward.max_entropy)
        if "region_sum" in sums and "flow" in self.keep:
            by_row = sums["region_sum"][:, pick]
            from_region = forward.labels.from_region
            layer.values["flow"] = backend.region_totals(from_region, by_row)
            if n:
                part.values["flow"] = backend.region_totals(from_region[:, :n], by_row[:, :, :n])


def _require_arrays(statistic: Statistic, values: Any, view: View) -> None:
    """Raise CaptureError if arrays of a user's function do not match its statistic."""
    b, _, rows, _ = view.query.shape
    for array in statistic.arrays:
        sizes: list[int | None] = [b, *(None for dim in array.dims if dim != "layer")]
        if array.by_position and not array.predicted:
            sizes[-1] = rows if array.join is Join.ROWS else view.key.shape[2]
        tensor = values.get(array.name) if isinstance(values, Mapping) else None
        shape = list(tensor.shape) if isinstance(tensor, Tensor) else None
        fits = shape is not None and len(shape) == len(sizes)
        if not fits or any(n not in (None, m) for n, m in zip(sizes, shape or (), strict=True)):
            dims = ", ".join(["b", *(dim for dim in array.dims if dim != "layer")])
            gave = f"{array.name} as {shape or type(values).__name__}"
            last = f"{rows} rows (Join.ROWS) or {view.key.shape[2]} keys"
            remedy = (
                f"Return a mapping with {array.name} as a tensor ({dims}), the last one of {last}."
            )
            raise CaptureError(f"statistic {statistic.name!r} gave {gave}", remedy)


def _by_group(entropy: Float[Tensor, "b h q"], labels: Labels, max_entropy: Tensor) -> Arrays:
    """Return the sum of the entropies and the number of queries in each group.

    Queries with one visible key are left out.
    """
    rows = entropy.nan_to_num().mT[:, None]  # (b, 1, q, h)
    total = backend.region_totals(labels.of_group.mT, rows)[:, 0]  # (b, g, h)
    return {"entropy_sum": total, "entropy_rows": (labels.of_group * ~max_entropy.isnan()).sum(-1)}


def _value_norm(view: View, call: attention_hook.Call) -> Mapping[str, Tensor]:
    new = view.visible.of_rows(call.value, 2)
    return {"value_norm": backend.value_norms(call.module, new)}


# Functions of one layer's attention that need no attention weights.
_FUNCTIONS: dict[str, Compute] = {
    "qk": lambda view, call: backend.columns(view),
    "value_norm": _value_norm,
}


def _function(name: str) -> Compute | None:
    return _FUNCTIONS.get(name) or STATISTICS[name].compute


@dataclass(frozen=True, eq=False)
class _LayerCall:
    """An attention call of one layer that is to be measured."""

    call: attention_hook.Call
    forward: Forward
    lse: Float[Tensor, "b h q"] | None
    is_chosen: bool  # False: measured for the rollout alone


def _select_heads(view: View, heads: Int[Tensor, " n"]) -> View:
    """Return the view of some heads; keys shared by several heads are repeated."""
    mask = view.mask
    return replace(
        view,
        query=view.query[:, heads],
        key=view.key[:, heads // (view.query.shape[1] // view.key.shape[1])],
        mask=mask if mask is None or mask.shape[1] == 1 else mask[:, heads],
        lse=None if view.lse is None else view.lse[:, heads],
        bias=None if view.bias is None else view.bias[:, heads],
    )
