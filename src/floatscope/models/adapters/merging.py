"""Merge an adapter's tensors into a network's weights.

A LoRA of rank r with matrices A and B changes a weight W to W + s·B·A, with s = alpha / r (or alpha / √r);
DoRA also rescales each row. Complete tensors replace the tensors of the base model. The network is in
float32 or float64 during the merge and is cast to its dtype afterwards.
"""

import re
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import ModelError
from .files import Adapter

_OTHER_BASE = "The adapter was made for another base model: load that model."


@torch.no_grad()
def merge(net: PreTrainedModel, adapter: Adapter, key_mapping: Mapping[str, str]) -> None:
    """Merge the adapter into `net`, in place.

    The adapter's module names are those of the network or those of the published checkpoint; `key_mapping`
    translates the names of the published checkpoint.
    """
    names = {name for name, _ in net.named_modules()}
    places = {module: _place(names, module, key_mapping, adapter) for module in adapter.modules}
    _untie(net, adapter, places)
    for module, parts in adapter.modules.items():
        _Merge(net.get_submodule(places[module]), module, adapter, parts).run()


def _place(names: set[str], module: str, key_mapping: Mapping[str, str], adapter: Adapter) -> str:
    """Return the network's name for an adapter's module; raise ModelError if the network lacks the module."""
    if module in names:
        return module
    for pattern, ours in key_mapping.items():
        mapped = re.sub(pattern, ours, f"{module}.").removesuffix(".")
        if mapped != module and mapped in names:
            return mapped
    raise ModelError(
        f"{adapter.path} changes {module:.200}, which the base model does not have", _OTHER_BASE
    )


def _untie(net: PreTrainedModel, adapter: Adapter, places: dict[str, str]) -> None:
    """Give a tied output head its own weights if the adapter changes the head or the embedding.

    New token rows alone do not untie them: as in PEFT, these rows change both.
    """
    head, embedding = net.get_output_embeddings(), net.get_input_embeddings()
    if adapter.settings.ensure_weight_tying or head is None or head.weight is not embedding.weight:
        return
    for module, parts in adapter.modules.items():
        if net.get_submodule(places[module]) in (head, embedding) and set(parts) != {"rows"}:
            head.weight = nn.Parameter(head.weight.clone(), requires_grad=False)
            net.config.tie_word_embeddings = False
            return


class _Merge:
    """The merge of an adapter's tensors into one module."""

    def __init__(
        self, target: nn.Module, name: str, adapter: Adapter, parts: dict[str, Tensor]
    ) -> None:
        self.target, self.name, self.adapter, self.parts = target, name, adapter, parts

    def run(self) -> None:
        for part in ("weight", "bias"):
            if part in self.parts:
                self._parameter(part).copy_(self._shaped(part, self._parameter(part).shape))
        if "rows" in self.parts:
            self._rows()
        weight = self._parameter("weight")
        if "A" in self.parts:
            self._require(nn.Linear, "a linear map")
            weight += self._delta("A", "B", weight.shape)
        if "embedding A" in self.parts:
            self._require(nn.Embedding, "an embedding")
            weight += self._delta("embedding A", "embedding B", weight.T.shape).T
        if "B.bias" in self.parts:
            bias = self._parameter("bias")
            bias += self._shaped("B.bias", bias.shape) * self._scaling
        if "magnitude" in self.parts:
            if "A" not in self.parts:
                raise self._wrong("DoRA for a module that is not a linear map")
            length = self._shaped("magnitude", weight.shape[:1])
            weight *= (length / torch.linalg.norm(weight, dim=1))[:, None]

    @property
    def _scaling(self) -> float:
        return self.adapter.settings.scaling(self.name)

    def _require(self, kind: type[nn.Module], words: str) -> None:
        if not isinstance(self.target, kind):
            raise self._wrong(
                f"a LoRA for {words}, but the module of the base model is of another kind"
            )

    def _parameter(self, part: str) -> Tensor:
        parameter = self.target._parameters.get(part)
        if parameter is None:
            raise self._wrong(f"a {part}, which the module of the base model does not have")
        return parameter.data

    def _delta(self, a: str, b: str, shape: tuple[int, ...]) -> Float[Tensor, "out in"]:
        """Return the change of a weight of this shape, s·B·A, from the adapter's tensors named a and b."""
        (n_out, n_in), rank = shape, self.adapter.settings.rank(self.name)
        lora_a, lora_b = self._shaped(a, (rank, n_in)), self._shaped(b, (n_out, rank))
        return (lora_b @ lora_a) * self._scaling

    def _rows(self) -> None:
        weight, ids = self._parameter("weight"), self.adapter.settings.rows(self.name)
        rows = self._shaped("rows", (len(ids), *weight.shape[1:]))
        if any(i >= len(weight) for i in ids):
            raise self._wrong(
                f"row {max(ids)}, but the module of the base model has {len(weight)} rows"
            )
        weight[ids] = rows

    def _shaped(self, part: str, expected: tuple[int, ...]) -> Tensor:
        tensor = self.parts[part]
        if tensor.shape != expected:
            raise self._wrong(f"{part} of shape {tuple(tensor.shape)}, expected {tuple(expected)}")
        return tensor.to(self.target._parameters["weight"])

    def _wrong(self, problem: str) -> ModelError:
        return ModelError(f"{self.adapter.path}: {self.name} has {problem}", _OTHER_BASE)
