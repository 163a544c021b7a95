"""Fast-dLLM v2: a Qwen2.5 that sees its own block and all earlier blocks; row i − 1 predicts position i.

Wu et al. 2025, arXiv 2509.26328. Implemented after fragments of the published decoding code
(NVlabs/Fast-dLLM, v2/, generation_functions.py) and a public description of the model's configuration;
the modelling code was not used.
"""

from ..family import Direction, Family

FAST_DLLM = Family(
    name="Fast-dLLM",
    architectures=("Fast_dLLM_QwenForCausalLM",),
    network="transformers:Qwen2ForCausalLM",
    direction=Direction.BLOCK_CAUSAL,
    shift=1,
    block=32,
    block_field="bd_size",
    mask_id=151665,
    mask_vocab=(151936,),
    examples="Fast-dLLM v2 1.5B and 7B",
    tested="float64 reference",
)
