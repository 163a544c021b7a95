"""LLaDA 2: a mixture of experts that sees its own block of 32 and all earlier blocks.

The network is GLM-4's mixture of experts with other key names, and with q, k and v in one tensor. Its
sigmoid router has a bias that affects only the choice of experts. The experts form groups, and the router
searches only some of the groups. There is a shared expert, and the first layers have no experts. The
config field `sliding_window` is not used. Implemented after modeling_llada2_moe.py, as in ZHZisZZ/dllm
(dllm/pipelines/llada2/models/).
Bie et al. 2025, arXiv 2512.15745; 2.1: Bie et al. 2026, arXiv 2602.08676.
"""

from typing import Any

from ...errors import ModelError
from ..family import Direction, Family, rope

_EXPECTED: dict[str, Any] = {
    "use_qkv_bias": False,
    "use_bias": False,
    "use_qk_norm": True,
    "score_function": "sigmoid",
    "rope_scaling": None,
}
_SAME = """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
hidden_act rms_norm_eps max_position_embeddings num_experts_per_tok
moe_intermediate_size first_k_dense_replace n_group topk_group routed_scaling_factor""".split()


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    """Translate LLaDA 2's config fields to GLM-4's; refuse what that network does not support."""
    for key, expected in _EXPECTED.items():
        if raw.get(key, expected) not in (expected, None):
            raise ModelError(
                f"this LLaDA 2 has {key} = {raw[key]!r:.80}, and only {expected!r} is supported",
                "Floatscope cannot load it; LLaDA 2.0 and 2.1 mini are supported.",
            )
    ends = ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")
    turned = {"partial_rotary_factor": float(raw.get("partial_rotary_factor", 0.5))}
    theta = (raw.get("rope_parameters") or raw)["rope_theta"]
    return {
        **{key: raw[key] for key in _SAME},
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        "num_key_value_heads": raw.get("num_key_value_heads") or raw["num_attention_heads"],
        **{key: raw.get(key) for key in ends},
        "n_routed_experts": raw["num_experts"],
        "n_shared_experts": raw["num_shared_experts"],
        # as in its code, which ignores the config
        "norm_topk_prob": raw["num_experts_per_tok"] > 1,
        "use_qk_norm": True,
        "attention_bias": False,
        "rope_parameters": rope(theta, turned),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
    }


LLADA2 = Family(
    name="LLaDA2",
    architectures=("LLaDA2MoeModelLM",),
    network="floatscope.models.networks.llada2:LLaDA2Network",
    direction=Direction.BLOCK_CAUSAL,
    shift=0,
    block=32,
    mask_id=156895,
    mask_vocab=(157184,),
    translate=translate,
    key_mapping={
        r"^model\.word_embeddings\.": "model.embed_tokens.",
        r"\.attention\.query_layernorm\.": ".self_attn.q_norm.",
        r"\.attention\.key_layernorm\.": ".self_attn.k_norm.",
        r"\.attention\.dense\.": ".self_attn.o_proj.",
        r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
    },
    examples="LLaDA 2.0 mini, LLaDA 2.1 mini",
    experts=True,
    tested="float64 reference, published code",
)
