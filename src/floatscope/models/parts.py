"""Find the parts of a network: its layers, its output head, its routers.

transformers' decoders agree on names; Floatscope's networks (`networks/`) define these parts themselves.
Attention modules are found by the attention hook.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def layers(net: PreTrainedModel) -> list[nn.Module]:
    """Return the layers in order, each as a module that is called once per forward."""
    blocks = getattr(net, "blocks", None)
    return list(net.model.layers if blocks is None else blocks)


def readout(net: PreTrainedModel) -> Callable[[Tensor], Tensor] | None:
    """Return the function from a layer's output to logits, as after the last layer; None if unknown."""
    method: Callable[[Tensor], Tensor] | None = getattr(net, "readout", None)
    if method is not None:
        return method
    head, norm = net.get_output_embeddings(), getattr(net.model, "norm", None)
    if head is None or norm is None:
        return None
    return lambda x: head(norm(x))


def routers(net: PreTrainedModel) -> dict[int, nn.Module]:
    """Return the router of each layer with experts; it returns logits, weights and the chosen experts."""
    gates: dict[int, nn.Module] = {}
    for number, block in enumerate(layers(net)):
        mlp: Any = getattr(block, "mlp", None)
        if hasattr(mlp, "gate") and hasattr(mlp, "experts"):
            gates[number] = mlp.gate
    return gates
