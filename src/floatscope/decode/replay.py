"""Launch each forward of a decoding, or replay it from a recorded graph if that saves time.

On a GPU, Python takes longer to launch a short forward than the GPU takes to run it, and a decoding
repeats the same shapes step after step. The first forward of a kind is launched, which also compiles
its kernels. If recording saves time for the number of forwards of this kind that follow, the second
forward is recorded and later forwards are replayed. A forward that cannot be recorded is launched, and
each reason is reported once. Launched and replayed forwards give the same results.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..models import Model, Visibility, attention_hook, graphs, parts
from ..models.graphs import CannotReplay, Part
from .fixed_cache import FixedCache, attend
from .state import Edit, State, Watcher, notified

# Measured on one H200 and its host; on other machines a recording may pay off a little earlier or later.
LAYER = 0.7e-3  # seconds that Python takes to launch a layer
RECORDING = 2.0  # cost of a recording, in launched forwards
OPERATIONS = 5e14  # operations per second of the GPU, in 16 bits
_IDLE = "transformers.utils.output_capturing"


class Forwards:
    """The forwards of one decoding, launched or replayed. `predict` returns the same as `Model.predict`."""

    def __init__(self, model: Model, watcher: Watcher) -> None:
        self.model, self.part = model, watcher.part()
        self.store = graphs.store_of(model.net) if usable(model) else None
        if self.store is not None:
            self.store.release_outdated(model.net)
            self.modules = attention_hook.attention_modules(model.net)
            self.hooks = _hooks(model.net)  # emptied once they are known to belong to Floatscope

    def close(self) -> None:
        if self.store is not None:
            self.store.release_if_large()

    def predict(self, state: State, to_come: int) -> Float[Tensor, "b w v"]:
        """Return the logits for the state's window. The next replay overwrites the logits.

        `to_come` is the number of forwards of this kind that are left, including this one.
        """
        rows = torch.arange(*state.window, device=state.canvas.device) - self.model.shift
        return self.forward(rows.clamp(min=0), state, to_come)

    def forward(
        self, rows: Int[Tensor, " w"], state: State, to_come: int
    ) -> Float[Tensor, "b w v"]:
        """Return the logits of `rows` of the canvas. The next replay overwrites them."""
        return self._answer(_Asked({"ids": state.canvas, "rows": rows}), state, to_come)

    def step(
        self,
        ids: Int[Tensor, "b q"],
        rows: Int[Tensor, " w"],
        state: State,
        cache: FixedCache,
        to_come: int,
    ) -> Float[Tensor, "b w v"]:
        """Return the logits of `rows` in a forward of the tokens `ids` with a cache of fixed size."""
        return self._answer(_Asked({"ids": ids, "rows": rows}, cache), state, to_come)

    def _answer(self, request: "_Asked", state: State, to_come: int) -> Float[Tensor, "b w v"]:
        logits = None
        if self.store is not None:
            logits = self._replayed(self.store, request, state, to_come)
        return (
            request.forward(self.model, request.inputs, state.visible) if logits is None else logits
        )

    def fixed_hindered(self, state: State) -> str | None:
        """Return why a decoding cannot use a cache of fixed size, or None if it can.

        Handlers that only observe are ignored, because the logits must not depend on whether a decoding
        is observed.
        """
        parts: list[Part] = [_Edits(self.model, state)]
        parts += [] if self.part is None else [self.part]
        for edit in self.model.edits:
            if edit.same_forward(state) is None:
                return f"the effect of {edit.described or type(edit).__name__} depends on the step"
        for handler in attention_hook.attached_handlers(self.modules):
            if handler is not attend and not any(part.owns(handler) for part in parts):
                return f"{_name(handler)} takes part in the forward"
        if any(reach is not None for reach in self.model.reaches):
            return "its layers have different windows"
        return None

    def _replayed(
        self, store: graphs.Store, request: "_Asked", state: State, to_come: int
    ) -> Float[Tensor, "b w v"] | None:
        """Return a replayed forward's logits, recording it first if that saves time; None: launch it."""
        parts: list[Part] = [_Edits(self.model, state)]
        parts += [] if self.part is None else [self.part]
        try:
            key = self._key(request, state, parts)
        except CannotReplay as reason:
            notice(str(reason))
            return None
        recorded = store.recorded_graph(key)
        tokens = request.inputs["ids"].numel()
        if recorded is None and not self._worth_recording(store, key, tokens, parts, to_come):
            return None
        inputs = self._inputs(request, state, parts)
        if recorded is None:
            recorded = self._record(store, key, request, inputs, state.visible, parts)
        if recorded is None:
            return None
        logits, yielded = recorded.replay(inputs)
        for part, outputs in zip(parts, yielded, strict=True):
            part.replayed(outputs)
        result: Tensor = logits
        return result

    def _inputs(self, request: "_Asked", state: State, parts: Sequence[Part]) -> dict[str, Tensor]:
        inputs = dict(request.inputs)
        inputs |= {f"visible.{name}": tensor for name, tensor in _tensors(state.visible).items()}
        for n, part in enumerate(parts):
            inputs |= {f"{n}.{name}": tensor for name, tensor in part.inputs().items()}
        return inputs

    def _worth_recording(
        self, store: graphs.Store, key: Hashable, tokens: int, parts: Sequence[Part], to_come: int
    ) -> bool:
        """Tell whether to record a forward, which must not be the first of its kind and must save time."""
        before = store.launched[key]
        store.launched[key] += 1
        if not before or key in store.refused or not graphs.trusted():
            return False
        # the graph may be evicted again, so only the coming forwards count
        if key in store.evicted:
            before = 0
        if self.model.graphs == "always" and to_come > RECORDING:
            return True
        python_time = sum(part.launching() for part in parts)
        return before + to_come >= least_forwards(self.model, tokens, python_time)

    def _key(self, request: "_Asked", state: State, parts: Sequence[Part]) -> Hashable:
        keys = [part.key() for part in parts]
        for handler in (*attention_hook.attached_handlers(self.modules), *self.hooks):
            if handler is attend or any(part.owns(handler) for part in parts):
                continue
            # A handler that does the same in every forward, on the device only, has the attribute
            # `recorded_as`.
            if (identity := getattr(handler, "recorded_as", None)) is None:
                raise CannotReplay(f"{_name(handler)} takes part in the forward")
            keys.append(identity)
        self.hooks = []  # hooks do not change during a decoding
        if _get_current_dispatch_mode() is not None:
            raise CannotReplay("a torch dispatch mode is active")
        if any(reach is not None for reach in self.model.reaches):
            raise CannotReplay("its layers have different windows")
        visible = state.visible
        rule = tuple(
            (f.name, getattr(visible, f.name))
            for f in fields(visible)
            if not isinstance(getattr(visible, f.name), Tensor)
            and not (f.name == "first" and visible.row_columns is not None)
        )
        shapes = tuple(tuple(tensor.shape) for tensor in request.inputs.values())
        room = None if request.cache is None else request.cache.name
        return shapes, rule, visible.padded, room, tuple(keys)

    def _record(
        self,
        store: graphs.Store,
        key: Hashable,
        request: "_Asked",
        inputs: dict[str, Tensor],
        visible: Visibility,
        parts: Sequence[Part],
    ) -> graphs.Recorded | None:
        def body(buffers: dict[str, Tensor]) -> tuple[Tensor, list[Any]]:
            moved: dict[str, Any] = {n: buffers[f"visible.{n}"] for n in _tensors(visible)}
            buffered = replace(visible, **moved)
            # known from the key; computing it would wait for the device
            buffered.__dict__["padded"] = visible.padded
            with ExitStack() as stack:
                yielded = []
                for n, part in enumerate(parts):
                    mine = {name: buffers[f"{n}.{name}"] for name in part.inputs()}
                    yielded.append(stack.enter_context(part.recording(mine, buffered)))
                logits = request.forward(self.model, buffers, buffered)
            return logits, yielded

        try:
            return store.record(key, inputs, body)
        # any error of a driver, a library or a kernel: launching still works
        except Exception as error:
            store.refused.add(key)
            reason = f"it could not be recorded ({error!r:.300})"
            warnings.warn(f"a forward is launched, not replayed: {reason}", stacklevel=5)
            return None


@dataclass(frozen=True, eq=False)
class _Asked:
    """A requested forward: `inputs` contains the token ids ("ids") and the rows of the logits ("rows")."""

    inputs: dict[str, Tensor]
    cache: FixedCache | None = None

    def forward(
        self, model: Model, inputs: dict[str, Tensor], visible: Visibility
    ) -> Float[Tensor, "b w v"]:
        if self.cache is not None:
            self.cache.positions = visible.row_columns
        return model.forward(inputs["ids"], inputs["rows"], visible, self.cache)


_names: "WeakKeyDictionary[Edit, object]" = WeakKeyDictionary()


class _Edits:
    """The interventions in force, as a part of a recorded forward."""

    def __init__(self, model: Model, state: State) -> None:
        self.edits, self.state, self.mask_id = model.edits, state, model.mask_id

    def key(self) -> Hashable:
        keys = []
        for edit in self.edits:
            forward_key = edit.same_forward(self.state)
            if forward_key is None:
                name = edit.described or type(edit).__name__
                raise CannotReplay(f"the effect of {name} depends on the step")
            # A stand-in for the edit, which refers to the network: a network's store must not keep it
            # alive.
            keys.append((_names.setdefault(edit, object()), forward_key))
        return tuple(keys)

    def owns(self, handler: object) -> bool:
        owner = getattr(handler, "__self__", None)
        return any(owner is edit for edit in self.edits)

    def launching(self) -> float:
        return LAYER / 4 * len(self.edits)

    def inputs(self) -> dict[str, Tensor]:
        if not self.edits:
            return {}
        canvas = self.state.canvas  # as wide as the cache of fixed size, if there is one
        wide = self.state.visible.keys - canvas.shape[1]
        return {"canvas": torch.nn.functional.pad(canvas, (0, wide)) if wide else canvas}

    @contextmanager
    def recording(self, inputs: dict[str, Tensor], visible: Visibility) -> Iterator[None]:
        if not self.edits:
            yield
            return
        canvas: Int[Tensor, "b k"] = inputs["canvas"]
        masked = canvas == (-1 if self.mask_id is None else self.mask_id)
        masked[:, : self.state.prompt_end] = False
        state = replace(self.state, canvas=canvas, visible=visible, masked=masked)
        with notified(self.edits, state):
            yield

    def replayed(self, yielded: Any) -> None:
        """Do nothing, because the logits are the only result of an intervention."""


def usable(model: Model) -> bool:
    """Tell whether forwards of this model can be recorded.

    Forwards of a mixture of experts cannot be recorded, because the host must know how many tokens each
    expert gets.
    """
    able = bool(model.graphs) and model.device.type == "cuda" and graphs.trusted()
    return able and not parts.routers(model.net)


def least_forwards(model: Model, tokens: int, python_time: float = 0.0) -> float:
    """Return the smallest number of forwards of `tokens` tokens for which a recording saves time.

    `python_time` is the time in seconds that Python takes per layer for the recorded statistics and
    interventions.
    """
    launched = model.n_layers * (LAYER + python_time)
    run = 2 * model.n_parameters * tokens / OPERATIONS
    gain = launched - run
    return RECORDING * launched / gain if gain > 0 else float("inf")


def _tensors(visible: Visibility) -> dict[str, Tensor]:
    values = {f.name: getattr(visible, f.name) for f in fields(visible)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _hooks(net: nn.Module) -> list[Callable[..., Any]]:
    """List the hooks that a forward of the network would call, except those known to do nothing."""
    hooks: list[Any] = []
    for module in net.modules():
        hooks += [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if hasattr(module, "_hf_hook"):  # accelerate's hook, which replaces the module's forward
            hooks.append(module._hf_hook)
    global_hooks = nn.modules.module
    hooks += [
        *global_hooks._global_forward_pre_hooks.values(),
        *global_hooks._global_forward_hooks.values(),
    ]
    # After a request for attentions, hooks of transformers remain, which do nothing until the next
    # request.
    return [hook for hook in hooks if getattr(hook, "__module__", "") != _IDLE]


def _name(handler: object) -> str:
    return getattr(handler, "__qualname__", type(handler).__name__)


@cache
def notice(reason: str) -> None:
    """Warn, once per reason, that forwards are launched instead of replayed."""
    warnings.warn(f"forwards are launched one by one, not replayed: {reason}", stacklevel=5)
