"""Make a Model of a network that Floatscope did not load, and observe its attention.

A transformers network calls attention through the interface in which `attention_hook` is registered. Any
other network is observed where it calls `torch.nn.functional.scaled_dot_product_attention`: a StandIn
for the network has the same parameters and one empty module per layer, and `SdpaCalls` assigns the n-th
call of a forward to the n-th of these modules. This module neither loads nor changes a network.
"""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel

from ..errors import CaptureError, ModelError
from . import attention_hook, outline
from .families import FAMILIES
from .family import Direction, Family
from .model import Model
from .registry import family_by_name
from .spec import ModelSettings

_SDPA = torch.nn.functional.scaled_dot_product_attention
_SIZES = {
    "num_hidden_layers": ("n_layers", "num_layers", "n_layer"),
    "num_attention_heads": ("n_heads", "n_head"),
    "hidden_size": ("d_model", "n_embd"),
    "vocab_size": (),
}
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")


def watched_model(network: Any, tokenizer: Any, settings: ModelSettings) -> Model:
    """Make a Model of a network that the user loaded, from its config and the given settings."""
    if not isinstance(network, nn.Module) or not hasattr(network, "config"):
        raise ModelError(
            f"a {type(network).__name__} is not a network with a config",
            "Give the network itself, such as pipeline.model of a diffusers pipeline.",
        )
    if hasattr(network, "_orig_mod"):
        raise ModelError(
            "torch.compile bypasses the recording hooks",
            "Watch the network before compiling it.",
        )
    has_interface = _by_interface(network)
    if has_interface and not hasattr(network, "blocks") and not hasattr(network, "model"):
        raise ModelError(
            f"a {type(network).__name__} has neither `model` nor `blocks`, where layers are expected",
            "Give the whole network, with its head.",
        )
    kind = _family(network, settings)
    net: Any = network if has_interface else StandIn(network)
    name = settings.name or str(
        getattr(network.config, "name_or_path", "") or type(network).__name__
    )
    generation = getattr(network, "generation_config", None)
    settled = outline.settled(name, kind, net.config, generation, tokenizer, settings)
    return Model(name=name, net=net, tokenizer=tokenizer, **settled)


def _by_interface(network: nn.Module) -> bool:
    """Tell whether every layer calls attention through the interface of transformers."""
    if not isinstance(network, PreTrainedModel) or not network._supports_attention_backend:
        return False
    return len(attention_hook.attention_modules(network)) == network.config.num_hidden_layers


def _family(network: Any, settings: ModelSettings) -> Family:
    """Return the network's family: as given, by its class, or a new one from its config and the settings."""
    if settings.family is not None:
        return family_by_name(settings.family)
    name = type(network).__name__
    causal = getattr(network.config, "is_causal", None)
    named_family = next((kind for kind in FAMILIES.values() if name in kind.architectures), None)
    if named_family is not None and named_family.direction is not Direction.CAUSAL:
        return named_family
    if settings.direction is None and causal is None and not _by_interface(network):
        raise ModelError(
            f"the config of {name} does not state the attention direction",
            "Give direction='causal', 'bidirectional' or 'block-causal' with block=; or family=.",
        )
    direction = Direction.BIDIRECTIONAL if causal is False else Direction.CAUSAL
    if (settings.direction or direction) == Direction.CAUSAL:
        return named_family or Family(name=name, architectures=(name,), network=type(network))
    if settings.shift is None:
        raise ModelError(
            f"the config of {name} does not state which row predicts a position",
            "Give shift=0 (row i predicts position i, as in LLaDA), shift=1 (row i − 1, as in Dream), or "
            "family=.",
        )
    return Family(name=name, architectures=(name,), network=type(network), direction=direction)


class _Layer(nn.Module):
    """A stand-in for the attention module of one layer, whose output projection is unknown."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_idx, self.num_key_value_groups = number, 1
        self.o_proj = nn.utils.skip_init(nn.Linear, 1, 1, bias=False)  # draws no random numbers


class StandIn(PreTrainedModel):
    """A network of which only the config, the parameters and the attention calls are known."""

    def __init__(self, network: nn.Module) -> None:
        # skips PreTrainedModel.__init__, which needs a transformers config
        nn.Module.__init__(self)
        config: Any = network.config
        sizes = {name: _size(config, name, aliases) for name, aliases in _SIZES.items()}
        fields = {**vars(config), **sizes, "_attn_implementation": attention_hook.NAME}
        context = [getattr(config, name) for name in _CONTEXT if hasattr(config, name)]
        # no limit, as the config has none
        fields["max_position_embeddings"] = context[0] if context else 1 << 31
        self.config = SimpleNamespace(**fields)
        self.blocks = nn.ModuleList(_Layer(number) for number in range(sizes["num_hidden_layers"]))
        self._network = (network,)  # not as a submodule
        self.named_parameters = network.named_parameters
        self.named_buffers = network.named_buffers
        self.state_dict = network.state_dict


def _size(config: Any, name: str, aliases: tuple[str, ...]) -> int:
    for called in (name, *aliases):
        if isinstance(size := getattr(config, called, None), int):
            return size
    raise ModelError(
        f"the config of the network has no {name}", f"Set network.config.{name} before watching."
    )


class SdpaCalls(TorchFunctionMode):
    """A replacement for SDPA that passes the n-th call of a forward to the attention hook as layer n."""

    def __init__(self, net: StandIn) -> None:
        super().__init__()
        self._layers = list(net.blocks)
        self._next = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _SDPA:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        if exc[0] is None and self._next < len(self._layers):
            raise CaptureError(
                f"{self._next} SDPA calls in a forward of {len(self._layers)} layers",
                "Set the network's attn_implementation to 'sdpa'; other attention implementations "
                "cannot be watched.",
            )

    def _attend(
        self,
        query: Float[Tensor, "b h q d"],
        key: Float[Tensor, "b kv k d"],
        value: Float[Tensor, "b kv k dv"],
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Float[Tensor, "b h q dv"]:
        if self._next == len(self._layers):
            raise CaptureError(
                f"more than {self._next} SDPA calls in a forward of {self._next} layers",
                "A network with further attention, such as cross-attention, cannot be watched.",
            )
        if is_causal and query.shape[2] != key.shape[2] and query.shape[2] > 1:
            raise CaptureError(
                f"SDPA with is_causal over {query.shape[2]} queries and {key.shape[2]} keys lets "
                "the first query see only the first key",
                "Watch a loop whose cached forwards pass a mask.",
            )
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
        layer: Any = self._layers[self._next]
        self._next += 1
        layer.num_key_value_groups = query.shape[1] // key.shape[1]
        attend = AttentionInterface()[attention_hook.NAME]
        output, _ = attend(layer, query, key, value, attn_mask, dropout_p, scale, is_causal)
        return output.transpose(1, 2)
