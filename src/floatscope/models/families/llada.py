"""LLaDA: a bidirectional Llama with OLMo's key names.

LLaDA's published code refuses `output_attentions` and does not load on transformers 5. The weights have
the shapes and roles of Llama's weights, so LlamaForCausalLM gives equal logits. LLaDA rotates q and k in
float32, unless `rope_full_precision` is false.
Nie et al. 2025, arXiv 2502.09992.
"""

from typing import Any

from ...errors import ModelError
from ..family import Direction, Family, rope


def translate(raw: dict[str, Any]) -> dict[str, Any]:
    """Translate LLaDA's config fields to Llama's; refuse variants that are not a Llama.

    `flash_attention` and `flash_attn_varlen`, which forks add, do not affect the results.
    """
    from ..sizes import positive_integer  # imports torch, which listing the families does not need

    stretched = (key for key in raw if "yarn" in key.lower())  # a rotary scaling of some forks
    for key, expected in {
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "rope": True,
        "alibi": False,
        "attention_layer_norm": False,
        "scale_logits": False,
        "input_emb_norm": False,  # embeddings times √d_model
        "clip_qkv": None,
        "rope_scaling": None,
        **dict.fromkeys(stretched, False),
    }.items():
        if raw.get(key, expected) not in (expected, None):
            raise ModelError(
                f"this LLaDA variant has {key} = {raw[key]!r}, and only {expected!r} is a Llama",
                "Floatscope cannot load it; LLaDA-8B Base, Instruct and 1.5 are supported.",
            )
    vocab = raw.get("embedding_size") or raw["vocab_size"]
    return {
        "vocab_size": vocab,
        "hidden_size": raw["d_model"],
        "num_hidden_layers": raw["n_layers"],
        "num_attention_heads": raw["n_heads"],
        "num_key_value_heads": raw.get("n_kv_heads") or raw["n_heads"],
        "intermediate_size": raw.get("mlp_hidden_size")
        or positive_integer(raw["mlp_ratio"], "config.json: mlp_ratio")
        * positive_integer(raw["d_model"], "config.json: d_model"),
        "max_position_embeddings": raw["max_sequence_length"],
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-5),
        "rope_parameters": rope(raw.get("rope_theta", 10_000.0)),
        "rope_full_precision": raw.get("rope_full_precision") is not False,
        "tie_word_embeddings": raw.get("weight_tying", False),
        "attention_bias": bool(
            raw.get("include_qkv_bias", False) or raw.get("include_bias", False)
        ),
        "mlp_bias": bool(raw.get("include_bias", False)),
        "mask_token_id": raw.get("mask_token_id"),
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_id": raw.get("eos_token_id"),
        "pad_token_id": raw.get("pad_token_id"),
    }


# One capture group per pattern: transformers fills only the first, and with a second one the tensors
# would silently keep their random initialisation.
BLOCK = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    # not the output head, which is transformer.ff_out without a block number
    "ff_out": "mlp.down_proj",
}
KEYS = {
    **{
        rf"^model\.transformer\.blocks\.(\d+)\.{theirs}\.": rf"model.layers.\1.{ours}."
        for theirs, ours in BLOCK.items()
    },
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
}

LLADA = Family(
    name="LLaDA",
    architectures=("LLaDAModelLM",),
    network="transformers:LlamaForCausalLM",
    direction=Direction.BIDIRECTIONAL,
    shift=0,
    mask_id=126336,
    mask_vocab=(126464,),
    translate=translate,
    key_mapping=KEYS,
    fp32_rope=True,
    gguf=True,
    examples="LLaDA-8B Base, Instruct, 1.5",
    tested="float64 reference, eager attention",
)
