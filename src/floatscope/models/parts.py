"""Where a network keeps its parts: its layers, what makes logits of the last one's output, its routers.

transformers' decoders agree on names; networks of ours (`networks/`) say it themselves. Attention modules
are the attention hook's to find. Nothing is computed or hooked here.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def layers(net: PreTrainedModel) -> list[nn.Module]:
    """Each layer as a module that is called once in a forward, in order."""
    own = getattr(net, "blocks", None)
    return list(net.model.layers if own is None else own)


def readout(net: PreTrainedModel) -> Callable[[Tensor], Tensor] | None:
    """From what a layer gives to logits, as after the last one; None where it is not known."""
    own: Callable[[Tensor], Tensor] | None = getattr(net, "readout", None)
    if own is not None:
        return own
    head, norm = net.get_output_embeddings(), getattr(net.model, "norm", None)
    if head is None or norm is None:
        return None
    return lambda x: head(norm(x))


def routers(net: PreTrainedModel) -> dict[int, nn.Module]:
    """The router of each layer that has experts: it gives logits, weights and the experts chosen."""
    found: dict[int, nn.Module] = {}
    for number, block in enumerate(layers(net)):
        mlp: Any = getattr(block, "mlp", None)
        if hasattr(mlp, "gate") and hasattr(mlp, "experts"):
            found[number] = mlp.gate
    return found
