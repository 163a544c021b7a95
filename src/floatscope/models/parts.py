"""Find the parts of a network: its layers, its output head, its routers.

transformers' decoders use the same names for these parts; the networks in `networks/` define the parts
themselves. The attention modules are found by `attention_hook`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def layers(net: PreTrainedModel) -> list[nn.Module]:
    """Return the layers in order. Each is a module that is called once per forward."""
    blocks = getattr(net, "blocks", None)
    return list(net.model.layers if blocks is None else blocks)


def readout(net: PreTrainedModel) -> Callable[[Tensor], Tensor] | None:
    """Return the function that computes logits from a layer's output; None if unknown."""
    method: Callable[[Tensor], Tensor] | None = getattr(net, "readout", None)
    if method is not None:
        return method
    head, norm = net.get_output_embeddings(), getattr(net.model, "norm", None)
    if head is None or norm is None:
        return None
    return lambda x: head(norm(x))


def routers(net: PreTrainedModel) -> dict[int, nn.Module]:
    """Return the router of each layer with experts; routers return logits, weights and chosen experts."""
    gates: dict[int, nn.Module] = {}
    for number, block in enumerate(layers(net)):
        mlp: Any = getattr(block, "mlp", None)
        if hasattr(mlp, "gate") and hasattr(mlp, "experts"):
            gates[number] = mlp.gate
    return gates
