"""Qwen3 (dense): Qwen2 without biases, with a norm on every head's q and k.

Yang et al. 2025, arXiv 2505.09388.
"""

from ..family import Family

QWEN3 = Family(
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    network="transformers:Qwen3ForCausalLM",
    gguf=True,
    examples="Qwen3",
    tested="eager attention",
)
