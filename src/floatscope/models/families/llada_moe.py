"""LLaDA-MoE: a bidirectional Qwen3-MoE with Llama's key names.

The network has norms on every head's q and k. The router takes a softmax over all experts and uses the
largest weights without renormalising them. The model_type is the same as LLaDA's, but the architecture
has its own name. Implemented after the modelling code in ZHZisZZ/dllm
(dllm/pipelines/llada/models/modeling_lladamoe.py).
Zhu et al. 2025, arXiv 2509.24389.
"""

from typing import Any

from ...errors import ModelError
from ..family import Direction, Family, rope

_EXPECTED: dict[str, Any] = {
    "qk_layernorm": True,
    "moe_router_score_function": "softmax",
    "moe_router_enable_expert_bias": False,
    "shared_expert_intermediate_size": None,
    "clip_qkv": None,
    "partial_rotary_factor": 1,
    "routed_scaling_factor": 1.0,
    "router_num_group": None,
    "rope_scaling": None,
}


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    """Translate LLaDA-MoE's config fields to Qwen3-MoE's; refuse what that network does not support."""
    for key, expected in _EXPECTED.items():
        if raw.get(key, expected) not in (expected, None):
            raise ModelError(
                f"this LLaDA-MoE has {key} = {raw[key]!r:.80}, and only {expected!r} is supported",
                "Floatscope cannot load it; LLaDA-MoE-7B-A1B Base and Instruct are supported.",
            )
    layers = raw["num_hidden_layers"]
    sparse = raw.get("moe_layer_freq") or 1
    sparse = sparse if isinstance(sparse, list) else [sparse] * layers
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_experts")
    settings = ("num_experts_per_tok", "max_position_embeddings", "hidden_act", "rms_norm_eps")
    ends = ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")
    return {
        **{key: raw[key] for key in (*sizes, *settings)},
        **{key: raw.get(key) for key in ends},
        "num_key_value_heads": raw.get("num_key_value_heads") or raw["num_attention_heads"],
        "head_dim": raw["hidden_size"] // raw["num_attention_heads"],
        "moe_intermediate_size": raw["expert_intermediate_size"],
        "intermediate_size": raw.get("dense_intermediate_size") or raw["expert_intermediate_size"],
        "mlp_only_layers": [n for n, has in enumerate(sparse) if not has],
        "norm_topk_prob": False,  # as in its code, which ignores the config
        "attention_bias": bool(raw.get("attention_bias")),
        "rope_parameters": rope(raw.get("rope_theta", 10_000.0)),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
    }


LLADA_MOE = Family(
    name="LLaDA-MoE",
    architectures=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    network="transformers:Qwen3MoeForCausalLM",
    direction=Direction.BIDIRECTIONAL,
    shift=0,
    mask_id=156895,
    mask_vocab=(157184,),
    translate=translate,
    gguf=True,
    examples="LLaDA-MoE-7B-A1B Base and Instruct",
    experts=True,
    tested="float64 reference, published code",
)
