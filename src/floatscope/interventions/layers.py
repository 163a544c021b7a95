"""Change the inputs of layers (the residual stream) or the outputs of their heads.

Module hooks change the residual stream, and the attention hook changes head outputs. Subclasses of
ActiveLayers define the change.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..models import Model, attention_hook, parts
from ..models.select import Choice, chosen
from .base import ActiveIntervention, Intervention


@contextmanager
def hooked(block: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the input of a layer by `change(input)` while the `with` block runs.

    The hook runs before existing hooks, so the intervention listed first acts first, and observers see
    its effect.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = change(args[0] if args else kwargs["hidden_states"])
        return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

    handle = block.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


class ActiveLayers(ActiveIntervention):
    """An intervention in force on the input of the chosen layers, or on the outputs of their heads."""

    def __init__(
        self, model: Model, kind: str, layers: Choice, heads: Choice, steps: Choice = None
    ) -> None:
        super().__init__(model, layers, steps)
        self.kind = kind
        self.heads = chosen(heads, model.n_heads, "head")

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in sorted(self.layers) if self.kind == "residual" else ():
                block = parts.layers(self.model.net)[layer]
                stack.enter_context(hooked(block, partial(self._input, layer)))
            yield

    def _input(self, layer: int, x: Float[Tensor, "b q w"]) -> Float[Tensor, "b q w"]:
        return self.residual(layer, x) if self.acts(layer) else x

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        output = proceed(call)
        if self.kind == "residual" or not self.acts(call.layer):
            return output
        return self.output(call, output)

    def residual(self, layer: int, x: Float[Tensor, "b q w"]) -> Float[Tensor, "b q w"]:
        """Return the changed input of a layer. This default sets it to zero."""
        return torch.zeros_like(x)

    def output(
        self, call: attention_hook.Call, output: Float[Tensor, "b q h d"]
    ) -> Float[Tensor, "b q h d"]:
        """Return the changed head outputs of a layer. This default sets the chosen heads to zero."""
        return output.index_fill(2, torch.tensor(self.heads, device=output.device), 0)


@dataclass(frozen=True)
class ZeroProbe(Intervention):
    """The probe of Patch: sets to zero the layer inputs or head outputs that a patch would replace."""

    kind: str
    layers: Choice = None
    heads: Choice = None

    def acting(self, model: Model) -> ActiveLayers:
        return ActiveLayers(model, self.kind, self.layers, self.heads)
