"""PatchSource: what Patch takes from a run, recorded step by step and layer by layer.

    clean = fs.interventions.PatchSource.of(model, prompt, sampler)

"residual": the input of each layer. "head": each head's output, before the heads are mixed. "attention":
queries and keys, from which a row's weights follow: S of them take the room of S vectors, the weights that
of S × S. Rows are those of the step's forward: with a KV cache the new ones. Kept on the model's device.
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
    """One run, as Patch needs it; make one with `PatchSource.of`."""

    prompt: Encoded
    sampler: str  # as it was run; "" where the prompt was read in one forward
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
        """Decode a prompt and keep what is asked for; without a sampler, read it in one forward."""
        kept = (keep,) if isinstance(keep, str) else tuple(keep)
        wrong = [one for one in kept if one not in KINDS]
        if wrong or not kept:
            raise UsageError(f"PatchSource: keep = {keep!r}", f"Use some of {', '.join(KINDS)}.")
        (one,) = encoded(model, [prompt])
        seen = _Recorder(model, kept, chosen(layers, model.n_layers, "layer"), steps)
        with seen.hooked():
            decoding = seen.run(one, sampler)
        if not seen.first_row:
            raise UsageError(
                f"PatchSource: steps = {steps} keeps none of the steps that were run",
                "Choose steps from 0 on.",
            )
        said = "" if sampler is None else sampler.describe()
        return cls(one, said, kept, tuple(seen.layers), seen.first_row, seen.tensors, decoding)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.tensors.values())

    def of_step(self, kind: str, step: int, layer: int) -> Tensor:
        return self.tensors[kind, step, layer]

    def keys(self, step: int, layer: int) -> Tensor:
        """(kv, k, d): of all positions so far; with a cache, of the steps before too."""
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
        # A cache's keys come from all steps before: those must be there.
        wanted = within(self.steps, state.step, "step")
        if wanted or (state.cached and "attention" in self.keep):
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
