"""SDAR, and TraDo, which was trained from it: a Qwen3 that sees its own block and every block before.

Neither the size of the blocks nor the mask is in its config.json: `load(dir, block=4)`, as the model's
name or card says (b4 … b64). Some causal models ship the same modelling code; a name cannot tell them
apart. Read beside JetAstra/SDAR (training/model/SDAR-4B-Chat/modeling_sdar.py): Qwen3's but for the mask.
Cheng et al. 2025, arXiv 2510.06303; TraDo: Wang et al. 2025, arXiv 2509.06949.
"""

from typing import Any

from transformers import Qwen3ForCausalLM

from ..family import Direction, Family


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "is_causal": False}


SDAR = Family(
    name="SDAR",
    architectures=("SDARForCausalLM",),
    network=Qwen3ForCausalLM,
    direction=Direction.BLOCK_CAUSAL,
    shift=0,
    mask_id=151669,
    translate=translate,
    examples="SDAR 1.7B to 8B Chat, TraDo 4B and 8B",
    tested="its arithmetic in float64",
)
