"""Write the residual stream of chosen layers, positions and steps to disk while a model decodes.

A watcher of the decoding copies the chosen rows of one forward at a time to the host and passes them to a
writer, so memory does not grow with the number of prompts.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
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
from ..trace.activations import COLUMNS, STORED, writing

NAMED = ("prompt", "answer", "masked", "revealed")
Positions = str | Choice


class Streaming(Watcher):
    """Watcher of a decoding that writes chosen rows to disk, batch after batch.

    Decode in a `with` block of `to`. Call `start` before each batch and `finish` after it. The constructor
    raises an error for invalid layers, steps or positions.
    """

    def __init__(
        self,
        model: Model,
        sampler: AnySampler,
        n_steps: int,
        layers: Choice,
        steps: Choice,
        positions: Positions,
        dtype: str,
    ) -> None:
        if dtype == "auto":
            dtype = str(model.dtype).removeprefix("torch.")
            dtype = dtype if dtype in STORED else "float32"
        if dtype not in STORED:
            problem = f"activations cannot be stored as {dtype!r}"
            raise UsageError(problem, f"Use auto, {', '.join(STORED)}.")
        if isinstance(positions, str) and positions not in NAMED:
            raise UsageError(f"positions = {positions!r}", f"Use {', '.join(NAMED)}, or numbers.")
        self.model, self.sampler, self.positions, self.dtype = model, sampler, positions, dtype
        self.layers = chosen(layers, model.n_layers, "layer")
        self.steps = frozenset(chosen(steps, n_steps, "step"))
        self._lengths = np.zeros(0, int)  # of the prompts in this batch
        self._first = 0  # the batch's first prompt
        self._select: Bool[Tensor, "b q"] | None = None
        self._rows: dict[int, np.ndarray] = {}  # rows of the current forward, by layer

    @contextmanager
    def to(self, path: Path) -> Iterator[None]:
        """Open a new store, and register hooks on the input of the chosen layers."""
        model = self.model
        names = ("model", "family", "fingerprint", "shift", "mask_id")
        attributes = {
            **{name: model.facts[name] for name in names},
            "sampler": self.sampler.describe(),
            "interventions": [edit.described or type(edit).__name__ for edit in model.edits],
            "positions": "all" if self.positions is None else str(self.positions),
        }
        width = model.net.config.hidden_size
        with ExitStack() as stack:
            new = writing(path, self.layers, width, self.dtype, attributes)
            self._writer = stack.enter_context(new)
            for layer in self.layers:
                block = parts.layers(model.net)[layer]
                hook = block.register_forward_pre_hook(self._take(layer), with_kwargs=True)
                stack.enter_context(hook)
            yield

    def start(self, prompts: Sequence[Encoded]) -> None:
        """Prepare to record a batch of prompts."""
        self._first += len(self._lengths)
        self._lengths = np.array([len(prompt.ids) for prompt in prompts])
        self._columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
        self._chosen: list[list[int]] | None = None  # by prompt, if positions are numbers
        if self.positions is not None and not isinstance(self.positions, str):
            sizes = (self._lengths + self.sampler.length).tolist()
            self._chosen = [chosen(self.positions, size, "position") for size in sizes]

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        if state.step in self.steps:
            self._rows, self._select = {}, self._selected(state)
        try:
            yield
        finally:
            self._select = None

    def _take(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._select is not None:
                x = args[0] if args else kwargs["hidden_states"]
                self._rows[layer] = stored(x[self._select], self.dtype)

        return hook

    def _selected(self, state: State) -> Bool[Tensor, "b q"]:
        """Return which rows of this forward to store, by `positions`; padding is never selected."""
        keys, named = state.canvas.shape[1], self.positions
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
            state_of = {"masked": state.masked, "revealed": ~state.masked}
            flags = ~answer if named == "prompt" else answer & state_of.get(str(named), answer)
        return (flags & real)[:, state.visible.rows]

    def receive_decision(
        self, state: State, revealed: Bool[Tensor, "b w"], token: Int[Tensor, "b w"]
    ) -> None:
        """Write the selected rows of the last forward, except those of prompts that had already ended."""
        if state.step not in self.steps:
            return
        select = self._selected(state).cpu()
        batch, row = (index.numpy() for index in select.nonzero(as_tuple=True))
        alive = np.ones(len(batch), bool)
        if state.cached:
            alive = revealed.any(1).cpu().numpy()[batch]
        rows = np.stack([self._rows[layer] for layer in self.layers], axis=1)[alive]
        self._rows = {}
        column, prompt = row + state.visible.first_row, np.asarray(state.active)[batch]
        values = {
            "prompt": prompt,  # numbers within the batch
            "step": np.full(len(batch), state.step),
            "position": column - (state.prompt_end - self._lengths[prompt]),
            "token": state.canvas.cpu().numpy()[batch, column],
            "masked": state.masked.cpu().numpy()[batch, column],
        }
        for name, array in values.items():
            self._columns[name].append(array[alive])
        self._writer.add(rows)

    def finish(self, decodings: Sequence[Decoding]) -> None:
        """Write prompt, step, position and tokens (at the step, and final) of the rows of this batch."""
        nothing, parts = np.zeros(0, np.int64), self._columns.items()
        columns = {name: np.concatenate([nothing, *arrays]) for name, arrays in parts}
        prompt, position = columns["prompt"], columns["position"]
        final = np.empty(len(prompt), np.int64)
        for b, decoding in enumerate(decodings):
            final[prompt == b] = decoding.canvas[-1, position[prompt == b]]
        self._writer.describe(columns | {"prompt": prompt + self._first, "final_token": final})


def stored(rows: Tensor, kind: str) -> np.ndarray:
    """Convert rows to the store's dtype; raise an error for values that float16 cannot represent."""
    narrow = rows.to(getattr(torch, kind))
    if kind == "float16" and not bool((narrow.isfinite() | ~rows.isfinite()).all()):
        problem = f"an activation of {float(rows.abs().max()):.3g} does not fit into float16"
        raise CaptureError(problem, "Store them as bfloat16 or float32: dtype='bfloat16'.")
    if kind == "bfloat16":
        return narrow.view(torch.int16).cpu().numpy().view(np.uint16)
    return np.asarray(narrow.cpu().numpy())
