"""Tiny-A2D: Llama, Qwen2 and Qwen3 converted to bidirectional diffusion models.

The networks are those of the original models without the causal mask; row i predicts position i. The
config.json of a block-diffusion checkpoint does not state the direction: load the checkpoint with
`direction="block-causal", block=32`. The blocks of such a model begin at the answer, as if the prompt
were padded to whole blocks.

Implemented after ZHZisZZ/dllm (dllm/pipelines/a2d/models/*/modeling_*.py).
Zhou et al. 2026, arXiv 2602.22661.
"""

from typing import Any

from ..family import Direction, Family, Grid


def _family(name: str, network: str, **fields: Any) -> Family:
    return Family(
        name=f"A2D-{name}",
        architectures=(f"A2D{name}LMHeadModel",),
        network=network,
        direction=Direction.BIDIRECTIONAL,
        shift=0,
        grid=Grid.PADDED,
        examples=f"Tiny-A2D from {name}",
        tested="float64 reference, published code",
        **fields,
    )


# The published sampling code renders Qwen3's template with thinking switched off.
A2D_QWEN3 = _family(
    "Qwen3", "transformers:Qwen3ForCausalLM", template_arguments={"enable_thinking": False}
)
A2D_QWEN2 = _family("Qwen2", "transformers:Qwen2ForCausalLM")
A2D_LLAMA = _family("Llama", "transformers:LlamaForCausalLM")
