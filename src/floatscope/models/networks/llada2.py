"""LLaDA 2 as GLM-4's mixture of experts. Loading splits the tensor that contains q, k and v."""

from typing import Any

import torch
from torch import Tensor
from transformers import Glm4MoeForCausalLM
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Concatenate, ConversionOps, WeightConverter


class LLaDA2Network(Glm4MoeForCausalLM):
    """GLM-4's network under another class name, by which transformers selects the conversion of tensors."""


class SplitHeads(ConversionOps):
    """Split a tensor into the rows of q's, k's and v's heads, in this order."""

    @torch.no_grad()
    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        config: Any = None,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        fused = next(iter(input_dict.values()))
        fused = fused[0] if isinstance(fused, list) else fused
        heads = [config.num_attention_heads, *[config.num_key_value_heads] * 2]
        parts = fused.split([n * config.head_dim for n in heads])
        return {name: part.contiguous() for name, part in zip(target_patterns, parts, strict=True)}

    @property
    def reverse_op(self) -> ConversionOps:
        return Concatenate(0)


register_checkpoint_conversion_mapping(
    LLaDA2Network.__name__,
    [
        WeightConverter(
            "attention.query_key_value.weight",
            [f"self_attn.{part}_proj.weight" for part in "qkv"],
            operations=[SplitHeads()],
        )
    ],
    overwrite=True,
)
