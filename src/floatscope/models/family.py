"""A family: the description of an architecture that turns its checkpoints into a transformers network.

A new family is one file that defines a Family, and one line in `families/__init__.py`. This module runs
no model, and no code from a checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..registry import FAMILIES, Registry
from ..sequences.direction import Direction, Grid

if TYPE_CHECKING:  # not needed to list families
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Family:
    """One model architecture, identified by `architectures` in config.json.

    Args:
        name: name of the family.
        architectures: names in `architectures` of config.json that belong to the family.
        network: transformers class of the network, or "module:Class", which is imported when a model is
            loaded.
        direction: which keys a query sees; causal by default.
        shift: row i − shift predicts position i: 1 for autoregressive models (default) and Dream, 0 for
            LLaDA.
        block: block length in tokens of a family that decodes in blocks. None (default) if the family
            does not decode in blocks, or if each checkpoint has its own block length.
        block_field: field of config.json that contains the block length; empty (default) if no field does.
        grid: where blocks begin: at position 0 (default) or at the answer.
        mask_id: mask token id of the published checkpoints, used if neither config nor tokenizer states a
            mask token; None by default.
        mask_vocab: vocabulary sizes of the published checkpoints with that mask id; empty (default)
            allows any.
        translate: function from the fields of config.json to those of the network's config; a copy by
            default.
        key_mapping: regular expressions of checkpoint keys → keys of the network; empty by default.
        fp32_rope: rotate q and k in float32, whatever the dtype, as the reference code does. False by
            default.
        tokenizer: transformers tokenizer class for checkpoints without tokenizer.json; None by default.
        template_arguments: variables for the chat template, as in the published code; none by default.
        examples: well-known checkpoints, as text.
        unused: regular expressions of tensors that are ignored because they belong to other heads; none
            by default.
        context: function from the network's config to the longest sequence, in tokens;
            `max_position_embeddings` by default.
        reaches: function from the network's config to the number of positions that a row sees to either
            side, by layer. None for a layer is no limit; an empty tuple (default) is no limit in any layer.
        prepare: function called with the network after its weights are loaded; does nothing by default.
        gguf: whether GGUF files of llama.cpp are supported too. False by default.
        keeps: whether the network can use a KV cache. True by default.
        experts: whether some layers are mixtures of experts. False by default.
        tested: the reference implementation with which tests compare the network, as text.

    Example:
        ```python
        fs.register(fs.Family("OLMo2", ("Olmo2ForCausalLM",), "transformers:Olmo2ForCausalLM"))
        ```
    """

    name: str
    architectures: tuple[str, ...]
    network: "type[PreTrainedModel] | str"  # or "module:Class", imported when a model is loaded
    direction: Direction = Direction.CAUSAL
    shift: int = 1
    # of a family that decodes in blocks; None if the checkpoint states it
    block: int | None = None
    block_field: str = ""  # field of config.json with the block length
    grid: Grid = Grid.START  # where its blocks begin
    # id in published checkpoints, used if config and tokenizer name none
    mask_id: int | None = None
    mask_vocab: tuple[int, ...] = ()  # vocabulary sizes with that mask id; () allows any
    # config.json → the network's config
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict
    # checkpoint key pattern → network key
    key_mapping: dict[str, str] = field(default_factory=dict)
    fp32_rope: bool = False  # the reference code rotates in float32, whatever the dtype
    tokenizer: str | None = None  # transformers class, if no tokenizer.json is published
    # variables that the published code passes to the chat template
    template_arguments: dict[str, Any] = field(default_factory=dict)
    examples: str = ""  # well-known checkpoints
    unused: tuple[str, ...] = ()  # patterns of tensors of other heads, which are ignored
    # the longest sequence, from the config
    context: Callable[[Any], int] = lambda config: int(config.max_position_embeddings)
    # by layer, how far a row sees to either side; None or () is no limit
    reaches: Callable[[Any], tuple[int | None, ...]] = lambda config: ()
    # called with the network after its weights are loaded
    prepare: Callable[[Any], object] = lambda net: net
    gguf: bool = False  # GGUF files of llama.cpp are supported too
    keeps: bool = True  # the network accepts a KV cache
    experts: bool = False  # some or all layers are mixtures of experts
    tested: str = ""  # reference with which tests compare, as text
    registry: ClassVar["Registry[Family]"] = FAMILIES

    @property
    def about(self) -> dict[str, str]:
        """What the family's models support, as texts by column heading, for lists of families."""
        blocks = "in blocks" + (f" of {self.block}" if self.block else " (set `block=`)")
        orders = {Direction.CAUSAL: "left to right", Direction.BIDIRECTIONAL: "by unmasking"}
        caches = {Direction.CAUSAL: "exact", Direction.BIDIRECTIONAL: "approximate"}
        return {
            "weights from": "safetensors, GGUF" if self.gguf else "safetensors",
            "decodes": orders.get(self.direction, blocks),
            "KV cache": caches.get(self.direction, "exact, by block") if self.keeps else "none",
            "compared with": self.tested or "nothing yet",
        }

    @property
    def network_class(self) -> "type[PreTrainedModel]":
        """Class of the network, imported if `network` is a name."""
        if not isinstance(self.network, str):
            return self.network
        module, _, name = self.network.partition(":")
        network_class: type[PreTrainedModel] = getattr(import_module(module), name)
        return network_class

    def config(self, raw: dict[str, Any]) -> "PretrainedConfig":
        """Return the network's transformers config for a checkpoint.

        Args:
            raw: the fields of the checkpoint's config.json.
        """
        # A checkpoint may describe its network. It may not change how transformers works, such as by
        # remote code, a foreign model_type or methods of the config.
        fields = {k: v for k, v in self.translate(raw).items() if not _is_transformers_own(k)}
        # A config class's default token ids belong to another vocabulary.
        fields = {"bos_token_id": None, "eos_token_id": None, **fields}
        if self.direction is not Direction.CAUSAL:
            fields["is_causal"] = False
        config: PretrainedConfig = self.network_class.config_class(**fields)
        return config


# Fields that control how transformers finds files and builds networks, and that are no attribute of its
# config class.
_WORKING = (
    *("auto_map", "attn_implementation", "experts_implementation", "transformers_weights"),
    *("fusion_config", "distributed_config"),
)


def _is_transformers_own(field: str) -> bool:
    from transformers import PretrainedConfig

    if field in _WORKING:
        return True
    inherited = field.startswith("_") or hasattr(PretrainedConfig, field)
    return inherited and field != "rope_scaling"


def rope(theta: float, scaling: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return RoPE parameters in the form that transformers 5 expects."""
    return {"rope_type": "default", **(scaling or {}), "rope_theta": float(theta)}
