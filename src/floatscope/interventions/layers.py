"""What stands at layers: their inputs, the residual, and the outputs of their heads, about to be changed.

Hooks for the one, the seam for the other. What is put there is the subclasses' business.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..models import Model, parts, seam
from ..models.select import Choice, chosen
from .base import Acting, Intervention


class ActingLayers(Acting):
    """Changes the input of the chosen layers, or the outputs of their heads."""

    def __init__(
        self, model: Model, what: str, layers: Choice, heads: Choice, steps: Choice = None
    ) -> None:
        super().__init__(model, layers, steps)
        self.what = what
        self.heads = chosen(heads, model.n_heads, "head")

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for layer in sorted(self.layers) if self.what == "residual" else ():
                block = parts.layers(self.model.net)[layer]
                # Before hooks that were there: what is listed first acts first, and who looks on sees it.
                hook = block.register_forward_pre_hook(
                    self._hook(layer), with_kwargs=True, prepend=True
                )
                stack.callback(hook.remove)
            yield

    def _hook(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self.acts(layer):
                return None
            x = self.residual(layer, args[0] if args else kwargs["hidden_states"])
            return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

        return hook

    def attention(self, call: seam.Call, proceed: seam.Proceed) -> Tensor:
        output = proceed(call)
        if self.what == "residual" or not self.acts(call.layer):
            return output
        return self.output(call, output)

    def residual(self, layer: int, x: Float[Tensor, "b q w"]) -> Float[Tensor, "b q w"]:
        """The layer's input; here nothing at all, which no text's logits survive."""
        return torch.zeros_like(x)

    def output(self, call: seam.Call, output: Float[Tensor, "b q h d"]) -> Float[Tensor, "b q h d"]:
        """What comes out of the layer's heads."""
        return output.index_fill(2, torch.tensor(self.heads, device=output.device), 0)


@dataclass(frozen=True)
class Blank(Intervention):
    """Nothing in place of what others change: the proof that they reach it."""

    what: str
    layers: Choice = None
    heads: Choice = None

    def acting(self, model: Model) -> ActingLayers:
        return ActingLayers(model, self.what, self.layers, self.heads)
