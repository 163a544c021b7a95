"""Llama, and models published in its format: Llama 2 and 3, SmolLM2; as safetensors or GGUF.

Touvron et al. 2023, arXiv 2302.13971.
"""

from ..family import Family

LLAMA = Family(
    name="Llama",
    architectures=("LlamaForCausalLM",),
    network="transformers:LlamaForCausalLM",
    gguf=True,
    examples="Llama-2, Llama-3.x, SmolLM2",
    tested="eager attention, SmolLM2's published weights",
)
