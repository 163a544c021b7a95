"""RND1: a bidirectional Qwen3-MoE; row i − 1 predicts position i, as in Qwen3-MoE.

Every layer has experts; the weights of the chosen experts are normalised. Implemented after the modelling
code (RadicalNumerics/RND1, rnd/modeling_rnd.py and configuration_rnd.py). There is a report but no paper.
Original model: Yang et al. 2025, arXiv 2505.09388.
"""

from typing import Any

from ..family import Direction, Family, rope


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    replaced = (
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "moe_backend",
        "num_diffusion_steps",
    )
    stated = raw.get("rope_parameters") or {}
    theta = stated.get("rope_theta", raw.get("rope_theta", 1_000_000.0))
    return {
        **{key: value for key, value in raw.items() if key not in replaced},
        "head_dim": raw.get("head_dim") or 128,
        "norm_topk_prob": raw.get("norm_topk_prob", True),
        "rope_parameters": rope(theta, raw.get("rope_scaling") or None),
        "sliding_window": None,  # false in its code
        "decoder_sparse_step": 1,  # its code ignores the config: experts in every layer
        "mlp_only_layers": [],
    }


RND1 = Family(
    name="RND1",
    architectures=("RND1LM", "RND1"),
    network="transformers:Qwen3MoeForCausalLM",
    direction=Direction.BIDIRECTIONAL,
    shift=1,
    mask_id=151669,
    mask_vocab=(151936,),
    translate=translate,
    gguf=True,
    examples="RND1-Base-0910",
    experts=True,
    tested="float64 reference, published code",
)
