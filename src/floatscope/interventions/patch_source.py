"""PatchSource: activations of a run, recorded by step and layer, which Patch inserts into another run.

```python
clean = fs.interventions.PatchSource.of(model, prompt, sampler)
```

The kind "residual" is the input of each layer. The kind "head" is the output of each head, before the
output projection. For the kind "attention", queries and keys are recorded and the weights are computed
from them; for S positions this takes O(S) memory instead of O(S²). The recorded rows are those of the
step's forward, which with a KV cache are the new rows. Tensors stay on the model's device.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..decode.loop import AnySampler
from ..decode.state import State
from ..errors import UsageError
from ..models import Model, attention_hook, parts
from ..models.select import Choice, chosen, within
from ..sequences.decoding import Decoding
from ..sequences.prompt import Encoded, PromptLike
from .observing import Observer, encoded

KINDS = ("head", "attention", "residual")
QUERY, KEY = "query", "key"


@dataclass(frozen=True, eq=False, repr=False)
class PatchSource:
    """A recorded run for Patch. Created by `PatchSource.of`.

    Args:
        prompt: the encoded prompt.
        sampler: the sampler as a Python call; "" if the prompt was read in one forward.
        keep: kinds of activations that were recorded: "head", "attention", "residual".
        layers: recorded layers.
        first_row: by step, the position of the forward's first row.
        tensors: tensors by (kind, step, layer); their first dimension is rows, or heads and then rows.
        decoding: the decoding, or None if the prompt was read in one forward.
    """

    prompt: Encoded
    sampler: str  # as a Python call; "" if the prompt was read in one forward
    keep: tuple[str, ...]
    layers: tuple[int, ...]
    first_row: dict[int, int]  # by step: the position of the forward's first row
    tensors: dict[
        tuple[str, int, int], Tensor
    ]  # by kind, step and layer; rows (or heads, rows) first
    decoding: Decoding | None

    @classmethod
    def of(
        cls,
        model: Model,
        prompt: PromptLike,
        sampler: AnySampler | None = None,
        *,
        keep: str | Sequence[str] = KINDS,
        layers: Choice = None,
        steps: Choice = None,
    ) -> "PatchSource":
        """Record the tensors that Patch needs from a prompt's decoding, or from one forward over it.

        Args:
            model (Model): the model to run.
            prompt: text, a Prompt or token ids.
            sampler: sampler of the decoding; None (default) runs one forward over the prompt.
            keep: kinds to record, from "head", "attention" and "residual"; all kinds by default.
            layers: layers to record, as a number, a slice or a sequence; all by default.
            steps: steps to record, in the same way; all by default.
        """
        kinds = (keep,) if isinstance(keep, str) else tuple(keep)
        wrong = [kind for kind in kinds if kind not in KINDS]
        if wrong or not kinds:
            raise UsageError(f"PatchSource: keep = {keep!r}", f"Use some of {', '.join(KINDS)}.")
        (encoded_prompt,) = encoded(model, [prompt])
        recorder = _Recorder(model, kinds, chosen(layers, model.n_layers, "layer"), steps)
        with recorder.hooked():
            decoding = recorder.run(encoded_prompt, sampler)
        if not recorder.first_row:
            raise UsageError(
                f"PatchSource: steps = {steps} selects none of the steps that were run",
                "Count steps from 0.",
            )
        sampler_text = "" if sampler is None else sampler.describe()
        return cls(
            encoded_prompt,
            sampler_text,
            kinds,
            tuple(recorder.layers),
            recorder.first_row,
            recorder.tensors,
            decoding,
        )

    @property
    def nbytes(self) -> int:
        """Size of the recorded tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def of_step(self, kind: str, step: int, layer: int) -> Tensor:
        """Return the tensor recorded at a step and layer.

        Args:
            kind: "head" (row, head, channel), "residual" (row, channel) or "query" (head, row, channel).
            step: step, from 0.
            layer: layer, from 0.
        """
        return self.tensors[kind, step, layer]

    def keys(self, step: int, layer: int) -> Tensor:
        """Return the keys that a step's rows attend to in a layer, shape (key head, position, channel).

        With a KV cache, the keys of earlier steps are included.

        Args:
            step: step, from 0.
            layer: layer, from 0.
        """
        if self.first_row[step] == 0:
            return self.tensors[KEY, step, layer]
        parts = [self.tensors[KEY, s, layer] for s in sorted(self.first_row) if s <= step]
        return torch.cat(parts, dim=1)

    def __repr__(self) -> str:
        ids = self.prompt.ids if self.decoding is None else self.decoding.canvas.tolist()
        name = hashlib.blake2b(f"{ids} {self.sampler}".encode(), digest_size=4).hexdigest()
        return f"PatchSource({len(self.prompt.ids)} tokens, {self.sampler or 'read'}, {name})"


class _Recorder(Observer):
    def __init__(
        self, model: Model, keep: tuple[str, ...], layers: list[int], steps: Choice
    ) -> None:
        super().__init__(model)
        self.keep, self.layers, self.steps = keep, layers, steps
        self.first_row: dict[int, int] = {}
        self.tensors: dict[tuple[str, int, int], Tensor] = {}

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        # With a cache, a step also needs the keys of all earlier steps.
        selected = within(self.steps, state.step, "step")
        if selected or (state.cached and "attention" in self.keep):
            self.first_row[state.step] = int(state.visible.query_positions[0])
            with super().forward(state):
                yield
        else:
            yield

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in self.layers if "residual" in self.keep else ():
                block = parts.layers(self.model.net)[layer]
                hook = block.register_forward_pre_hook(self._residual(layer), with_kwargs=True)
                stack.callback(hook.remove)
            yield

    def _residual(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.state is not None:
                x = args[0] if args else kwargs["hidden_states"]
                self.tensors["residual", self.state.step, layer] = x[0].clone()

        return hook

    def saw(self, state: State, call: attention_hook.Call, output: Tensor) -> None:
        if call.layer not in self.layers:
            return
        place = state.step, call.layer
        if "head" in self.keep:
            self.tensors["head", *place] = output[0].clone()  # (q, h, d)
        if "attention" in self.keep:
            self.tensors[QUERY, *place] = call.query[0].clone()  # (h, q, d)
            self.tensors[KEY, *place] = call.key[0, :, -call.query.shape[2] :].clone()  # (kv, q, d)
