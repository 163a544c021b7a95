"""Record head outputs of other runs, as means or row by row, for AblateHeads to insert.

```python
reference = fs.interventions.HeadMeans.of(model, prompts)
```

The outputs are stored by layer and head, on the model's device and in the model's dtype.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.cpu.norms import value_norms
from ..decode.loop import AnySampler
from ..decode.state import State
from ..errors import UsageError
from ..models import Model, attention_hook
from ..models.select import chosen
from ..sequences.prompt import PromptLike
from .observing import Observer, encoded

Heads = Sequence[Sequence[int]]  # (layer, head), …


def by_layer(heads: Heads, model: Model, caller: str) -> dict[int, list[int]]:
    """Return the head numbers of each layer for pairs (layer, head); negative numbers count from the end."""
    layers: dict[int, set[int]] = {}
    for pair in heads:
        if isinstance(pair, int) or len(pair) != 2:
            raise UsageError(
                f"{caller}: a head is {pair!r:.40}", "Give pairs: heads=((layer, head), …)."
            )
        (layer,) = chosen(pair[0], model.n_layers, "layer")
        (head,) = chosen(pair[1], model.n_heads, "head")
        layers.setdefault(layer, set()).add(head)
    return {layer: sorted(numbers) for layer, numbers in sorted(layers.items())}


@dataclass(frozen=True, eq=False, repr=False)
class HeadMeans:
    """The mean output of every head over all rows of some runs. Created by `HeadMeans.of`.

    Args:
        mean: mean output, shape (layer, head, channel), in the model's dtype.
        norm: mean over rows of ‖W_O o‖, the norm of a head's contribution to the residual stream, shape
            (layer, head).
        prompts: number of prompts averaged over.
        rows: number of rows averaged over.
    """

    mean: Float[Tensor, "layer h d"]
    norm: Float[Tensor, "layer h"]
    prompts: int
    rows: int

    @classmethod
    def of(
        cls, model: Model, prompts: Sequence[PromptLike], sampler: AnySampler | None = None
    ) -> "HeadMeans":
        """Return the mean head outputs over all rows of one forward per prompt, or of each prompt's decoding.

        Args:
            model (Model): the model to run.
            prompts: texts, Prompts or token ids, at least one.
            sampler: sampler of the decodings, whose forwards are all averaged over; None (default) runs one
                forward over each prompt alone.
        """
        several = encoded(model, prompts)
        sums = _Sums(model)
        for prompt in several:
            sums.run(prompt, sampler)
        mean = torch.stack([total / sums.rows for total in sums.of_layer])
        norm = torch.stack([total / sums.rows for total in sums.norm_of_layer])
        return cls(mean.to(model.dtype), norm, len(several), sums.rows)

    def __repr__(self) -> str:
        return f"HeadMeans({self.prompts} prompts, {self.rows} rows, {self._digest})"

    @cached_property
    def _digest(self) -> str:
        return digest([self.mean])


class _Sums(Observer):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.of_layer: list[Tensor] = []
        self.norm_of_layer: list[Tensor] = []
        self.rows = 0

    def saw(self, state: State, call: attention_hook.Call, output: Tensor) -> None:
        total = output[0].double().sum(0)  # (h, d)
        norm = value_norms(call.module, output.transpose(1, 2))[0].double().sum(-1)  # (h,)
        if call.layer == len(self.of_layer):
            self.of_layer.append(total)
            self.norm_of_layer.append(norm)
        else:
            self.of_layer[call.layer] += total
            self.norm_of_layer[call.layer] += norm
        self.rows += output.shape[1] if call.layer == 0 else 0


@dataclass(frozen=True, eq=False, repr=False)
class HeadRows:
    """The output of heads in every row of some runs. Created by `HeadRows.of`.

    Args:
        rows: by layer, one tensor per prompt of shape (row, head, channel).
        heads: by layer, the recorded heads, in the order of the head dimension of `rows`.
        ids: token ids of each prompt.
    """

    rows: dict[int, tuple[Float[Tensor, "row h d"], ...]]  # by layer: one tensor per prompt
    heads: dict[int, list[int]]  # by layer: the recorded heads, in the order of `rows`
    ids: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls,
        model: Model,
        prompts: Sequence[PromptLike],
        sampler: AnySampler | None = None,
        heads: Heads | None = None,
    ) -> "HeadRows":
        """Record the head outputs of all rows of one forward per prompt, or of each prompt's decoding.

        Args:
            model (Model): the model to run.
            prompts: texts, Prompts or token ids, at least one.
            sampler: sampler of the decodings, whose forwards are all recorded; None (default) runs one
                forward over each prompt alone.
            heads: pairs ((layer, head), …) to record; None (default) records all heads.
        """
        several = encoded(model, prompts)
        all_heads = [
            (layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)
        ]
        heads_by_layer = by_layer(all_heads if heads is None else heads, model, "HeadRows")
        rows: dict[int, list[Tensor]] = {layer: [] for layer in heads_by_layer}
        for prompt in several:
            recorder = _Rows(model, heads_by_layer)
            recorder.run(prompt, sampler)
            for layer, parts in recorder.parts.items():
                rows[layer].append(torch.cat(parts))
        return cls(
            {layer: tuple(tensors) for layer, tensors in rows.items()},
            heads_by_layer,
            tuple(p.ids for p in several),
        )

    def __repr__(self) -> str:
        count = sum(len(tensor) for tensor in next(iter(self.rows.values())))
        return f"HeadRows({len(self.ids)} prompts, {count} rows, {self._digest})"

    @cached_property
    def _digest(self) -> str:
        return digest(tensor for tensors in self.rows.values() for tensor in tensors)


class _Rows(Observer):
    def __init__(self, model: Model, heads: dict[int, list[int]]) -> None:
        super().__init__(model)
        self.heads = heads
        self.parts: dict[int, list[Tensor]] = {layer: [] for layer in heads}

    def saw(self, state: State, call: attention_hook.Call, output: Tensor) -> None:
        if call.layer in self.heads:
            self.parts[call.layer].append(output[0, :, self.heads[call.layer]].clone())


def digest(tensors: "Iterator[Tensor] | Sequence[Tensor]") -> str:
    """Return a short hash of tensors, which identifies a reference in the record of a run."""
    hasher = hashlib.blake2b(digest_size=4)
    for tensor in tensors:
        hasher.update(tensor.detach().double().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
