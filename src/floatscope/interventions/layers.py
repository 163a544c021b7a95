"""What stands at layers: their inputs, the residual, and the outputs of their heads, about to be changed.

Hooks for the one, the attention hook for the other. What is put there is the subclasses' business.
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
from .base import Acting, Intervention


@contextmanager
def hooked(block: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """`change` gets the input of a layer, and the layer gets what it returns.

    Before hooks that were there: what is listed first acts first, and who looks on sees it.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = change(args[0] if args else kwargs["hidden_states"])
        return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

    handle = block.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


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
                stack.enter_context(hooked(block, partial(self._input, layer)))
            yield

    def _input(self, layer: int, x: Float[Tensor, "b q w"]) -> Float[Tensor, "b q w"]:
        return self.residual(layer, x) if self.acts(layer) else x

    def attention(self, call: attention_hook.Call, proceed: attention_hook.Proceed) -> Tensor:
        output = proceed(call)
        if self.what == "residual" or not self.acts(call.layer):
            return output
        return self.output(call, output)

    def residual(self, layer: int, x: Float[Tensor, "b q w"]) -> Float[Tensor, "b q w"]:
        """The layer's input; here nothing at all, which no text's logits survive."""
        return torch.zeros_like(x)

    def output(
        self, call: attention_hook.Call, output: Float[Tensor, "b q h d"]
    ) -> Float[Tensor, "b q h d"]:
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
