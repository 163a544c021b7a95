"""SDAR, and TraDo, which was trained from SDAR: a Qwen3 that sees its own block and all earlier blocks.

The published config.json states neither the block size nor the mask: use `load(dir, block=4)`, with the
size in the model's name or card (b4 … b64). The authors' training copy and models fine-tuned from it have
`block_size` and `mask_token_id`. Some causal models have the same modelling code, so the code's name does
not identify SDAR. Implemented after JetAstra/SDAR (training/model/SDAR-4B-Chat/modeling_sdar.py), which
differs from Qwen3 only in the mask.
Cheng et al. 2025, arXiv 2510.06303; TraDo: Wang et al. 2025, arXiv 2509.06949.
"""

from ..family import Direction, Family

SDAR = Family(
    name="SDAR",
    architectures=("SDARForCausalLM",),
    network="transformers:Qwen3ForCausalLM",
    direction=Direction.BLOCK_CAUSAL,
    shift=0,
    block_field="block_size",
    mask_id=151669,
    mask_vocab=(151936,),
    examples="SDAR 1.7B to 8B Chat, TraDo 4B and 8B",
    tested="float64 reference",
)
