"""Qwen2 and Qwen2.5: Llama with biases on q, k and v.

Yang et al. 2024, arXiv 2407.10671.
"""

from ..family import Family

QWEN2 = Family(
    name="Qwen2",
    architectures=("Qwen2ForCausalLM",),
    network="transformers:Qwen2ForCausalLM",
    gguf=True,
    examples="Qwen2, Qwen2.5",
    tested="eager attention",
)
