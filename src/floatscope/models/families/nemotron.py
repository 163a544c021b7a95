"""Nemotron-Labs-Diffusion: a Ministral with a causal context and a bidirectional open block.

The network uses YaRN, and multiplies each query by 1 + β ln(1 + ⌊position / 16384⌋), where β is the config
field `llama_4_scaling_beta`; transformers' Ministral3 does both. The field `dlm_paradigm` states how the
model was trained, which does not determine how the model decodes. Blocks begin at the answer. The same
weights decode left to right if loaded with `direction="causal", shift=1`.
Implemented after sgl-project/sglang (python/sglang/srt/models/, NemotronLabsDiffusionModel); there is no
paper. Block diffusion: Arriola et al. 2025, arXiv 2503.09573; training: Fu et al. 2025, arXiv 2512.14067.
"""

from typing import Any

from ...errors import ModelError
from ..family import Direction, Family, Grid


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    for key in ("attention_bias", "mlp_bias", "sliding_window"):
        if raw.get(key):
            raise ModelError(
                f"this Nemotron-Labs-Diffusion has {key} = {raw[key]!r:.80}, which is not supported",
                "Floatscope cannot load it.",
            )
    rope = dict(raw["rope_parameters"])
    rope.setdefault("llama_4_scaling_beta", 0.0)  # then queries do not grow with the position
    rope.setdefault("original_max_position_embeddings", raw["max_position_embeddings"])
    return {**raw, "rope_parameters": rope}


NEMOTRON = Family(
    name="Nemotron",
    architectures=("NemotronLabsDiffusionModel",),
    network="transformers:Ministral3ForCausalLM",
    direction=Direction.ACTIVE_BLOCK,
    shift=0,
    block=32,
    block_field="block_size",
    grid=Grid.PADDED,
    mask_id=100,
    mask_vocab=(131072,),
    translate=translate,
    key_mapping={r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."},
    examples="Nemotron-Labs-Diffusion 3B, 8B, 14B",
    tested="float64 reference",
)
