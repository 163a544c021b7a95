"""The residual stream of chosen layers, positions and steps, on its way to disk while a model decodes.

A watcher takes the rows of one forward to the host and hands them to a writer: what is in memory does not
depend on how many prompts there are. Nothing is measured here.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..decode.loop import AnySampler
from ..decode.state import State, Watcher
from ..errors import CaptureError, UsageError
from ..models import Model, parts
from ..models.select import Choice, chosen
from ..sequences.decoding import Decoding
from ..sequences.prompt import Encoded
from ..trace.activations import COLUMNS, STORED, RowWriter

NAMED = ("prompt", "answer", "masked", "revealed")
Positions = str | Choice


@dataclass(frozen=True)
class Wanted:
    """Which rows of which layers, and as what: checked before anything runs."""

    layers: tuple[int, ...]
    steps: frozenset[int]
    positions: Positions
    stored: str

    @classmethod
    def of(
        cls,
        model: Model,
        n_steps: int,
        layers: Choice,
        steps: Choice,
        positions: Positions,
        dtype: str,
    ) -> "Wanted":
        if dtype == "auto":
            dtype = str(model.dtype).removeprefix("torch.")
            dtype = dtype if dtype in STORED else "float32"
        if dtype not in STORED:
            raise UsageError(
                f"activations cannot be kept as {dtype!r}", f"Use auto, {', '.join(STORED)}."
            )
        if isinstance(positions, str) and positions not in NAMED:
            raise UsageError(
                f"positions = {positions!r}", f"Use {', '.join(NAMED)}, or numbers; all by default."
            )
        return cls(
            tuple(chosen(layers, model.n_layers, "layer")),
            frozenset(chosen(steps, n_steps, "step")),
            positions,
            dtype,
        )

    def facts(self, model: Model, sampler: AnySampler) -> dict[str, Any]:
        """Return where the rows come from: the store's attributes."""
        names = ("model", "family", "fingerprint", "shift", "mask_id")
        return {
            **{name: model.facts[name] for name in names},
            "sampler": sampler.describe(),
            "interventions": [edit.described or type(edit).__name__ for edit in model.edits],
            "positions": "all" if self.positions is None else str(self.positions),
        }


class Streaming(Watcher):
    """One batch: use as a context manager around `decode`, then call `finish`."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Encoded],
        length: int,
        first: int,
        wanted: Wanted,
        writer: RowWriter,
    ) -> None:
        self.model, self.first, self.wanted, self.writer = model, first, wanted, writer
        self._lengths = np.array([len(prompt.ids) for prompt in prompts])
        self._chosen: list[list[int]] | None = None  # by prompt, where positions are numbers
        if wanted.positions is not None and not isinstance(wanted.positions, str):
            sizes = (self._lengths + length).tolist()
            self._chosen = [chosen(wanted.positions, size, "position") for size in sizes]
        self._select: Bool[Tensor, "b q"] | None = None
        self._rows: dict[int, np.ndarray] = {}  # of the forward just run, by layer
        self._columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
        self._open = ExitStack()

    def __enter__(self) -> "Streaming":
        for layer in self.wanted.layers:
            block = parts.layers(self.model.net)[layer]
            hook = block.register_forward_pre_hook(self._take(layer), with_kwargs=True)
            self._open.callback(hook.remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def forward(self, state: State) -> AbstractContextManager[object]:
        return self._watch(state) if state.step in self.wanted.steps else nullcontext()

    @contextmanager
    def _watch(self, state: State) -> Iterator[None]:
        self._rows, self._select = {}, self._selected(state)
        try:
            yield
        finally:
            self._select = None

    def _take(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._select is not None:
                x = args[0] if args else kwargs["hidden_states"]
                self._rows[layer] = stored(x[self._select], self.wanted.stored)

        return hook

    def _selected(self, state: State) -> Bool[Tensor, "b q"]:
        """Choose rows of this forward; padding is never among them."""
        keys, named = state.canvas.shape[1], self.wanted.positions
        real = state.visible.key_is_real[:, :keys]
        answer = torch.arange(keys, device=real.device) >= state.prompt_end
        if self._chosen is not None:
            flags = torch.zeros_like(real)
            for row, b in enumerate(state.active):
                padding = state.prompt_end - int(self._lengths[b])
                flags[row, [padding + p for p in self._chosen[b] if padding + p < keys]] = True
        elif named is None:
            flags = real
        else:
            flags = {
                "prompt": ~answer,
                "answer": answer,
                "masked": answer & state.masked,
                "revealed": answer & ~state.masked,
            }[str(named)]
        return (flags & real)[:, state.visible.rows]

    def committed(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        """Hand the rows on: only now is it known which prompts of a cached batch had ended before."""
        if state.step not in self.wanted.steps:
            return
        select = self._selected(state).cpu()
        batch, row = (index.numpy() for index in select.nonzero(as_tuple=True))
        alive = np.ones(len(batch), bool)
        if state.cached:
            alive = revealed.any(1).cpu().numpy()[batch]
        rows = np.stack([self._rows[layer] for layer in self.wanted.layers], axis=1)[alive]
        self._rows = {}
        column, prompt = row + state.visible.first_row, np.asarray(state.active)[batch]
        values = {
            "prompt": prompt,  # of the batch, until it is finished
            "step": np.full(len(batch), state.step),
            "position": column - (state.prompt_end - self._lengths[prompt]),
            "token": state.canvas.cpu().numpy()[batch, column],
            "masked": state.masked.cpu().numpy()[batch, column],
        }
        for name, array in values.items():
            self._columns[name].append(array[alive])
        self.writer.add(rows)

    def finish(self, decodings: Sequence[Decoding]) -> None:
        """Say what the rows of this batch were, and which token stands there in the end."""
        nothing = np.zeros(0, np.int64)
        columns = {
            name: np.concatenate([nothing, *arrays]) for name, arrays in self._columns.items()
        }
        prompt, position = columns["prompt"], columns["position"]
        final = np.empty(len(prompt), np.int64)
        for b, decoding in enumerate(decodings):
            final[prompt == b] = decoding.canvas[-1, position[prompt == b]]
        self.writer.describe(columns | {"prompt": prompt + self.first, "final_token": final})


def stored(rows: Tensor, kind: str) -> np.ndarray:
    """Convert rows to the store's dtype; what float16 cannot hold is an error, not infinity."""
    narrow = rows.to(getattr(torch, kind))
    if kind == "float16" and not bool((narrow.isfinite() | ~rows.isfinite()).all()):
        raise CaptureError(
            f"an activation of {float(rows.abs().max()):.3g} does not fit into float16",
            "Keep them as bfloat16 or float32: dtype='bfloat16'.",
        )
    if kind == "bfloat16":
        return narrow.view(torch.int16).cpu().numpy().view(np.uint16)
    return np.asarray(narrow.cpu().numpy())
