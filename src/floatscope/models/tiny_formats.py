"""The families' published formats (config.json and key names), for writing tiny random checkpoints.

`tiny` draws the weights and writes the files. The sizes are those of a Shape; all other fields are as in
the published files, including fields that Floatscope does not read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .families import llada

Config = dict[str, Any]
Weights = dict[str, Tensor]
EXPERTS, CHOSEN = 6, 2


@dataclass(frozen=True)
class Format:
    """The published format of one family: functions that make config.json and rename the tensors."""

    config: Callable[[Any], Config]
    named: Callable[[Weights], Weights] = dict


def _sizes(s: Any) -> Config:
    return {
        "hidden_size": s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "intermediate_size": s.ffn,
        "max_position_embeddings": s.context,
        "vocab_size": s.vocab,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }


def _custom_code(
    architecture: str, model_type: str, file: str, *automatic: str, **other_classes: str
) -> Config:
    """Return the config fields that declare custom modelling code. No custom code is written or run.

    `automatic` lists the auto classes of transformers that load the architecture. `other_classes` maps
    other auto classes to the model classes that they load.
    """
    classes = dict.fromkeys(automatic, architecture) | other_classes
    code = {name: f"{file}.{class_name}" for name, class_name in classes.items()}
    return {"architectures": [architecture], "model_type": model_type, "auto_map": code}


def split_experts(weights: Weights) -> Weights:
    """Return the weights with one tensor per expert, as published; the network joins a layer's experts."""

    def named() -> Iterator[tuple[str, Tensor]]:
        for key, value in weights.items():
            stem, _, last = key.rpartition(".")
            if not stem.endswith("mlp.experts"):
                yield key, value
                continue
            for number, expert in enumerate(value):
                if last == "down_proj":
                    yield f"{stem}.{number}.down_proj.weight", expert.clone()
                else:
                    gate, up = expert.chunk(2)
                    yield f"{stem}.{number}.gate_proj.weight", gate.clone()
                    yield f"{stem}.{number}.up_proj.weight", up.clone()

    return dict(named())


def _stock(architecture: str, model_type: str) -> Callable[[Any], Config]:
    """Return a function that makes the config.json of a transformers network from a Shape."""

    def config(s: Any) -> Config:
        return _sizes(s) | {"architectures": [architecture], "model_type": model_type}

    return config


def _qwen3(s: Any) -> Config:
    return _stock("Qwen3ForCausalLM", "qwen3")(s) | {"head_dim": s.width // s.heads}


def _dream(s: Any) -> Config:
    code_fields = _custom_code("DreamModel", "Dream", "modeling_dream", "AutoModel")
    return _sizes(s) | code_fields | {"mask_token_id": 259}


def _llada(s: Any) -> Config:
    return {
        **_custom_code("LLaDAModelLM", "llada", "modeling_llada", "AutoModelForCausalLM"),
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "rope": True,
        "alibi": False,
        "d_model": s.width,
        "n_layers": s.layers,
        "n_heads": s.heads,
        "n_kv_heads": s.heads,
        "mlp_hidden_size": s.ffn,
        "max_sequence_length": s.context,
        "vocab_size": s.vocab,
        "embedding_size": s.vocab,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "mask_token_id": 259,
    }


def _llada_names(weights: Weights) -> Weights:
    """Return the weights under the key names of LLaDA's published checkpoints."""
    renamed = {
        "model.embed_tokens.": "model.transformer.wte.",
        "model.norm.": "model.transformer.ln_f.",
        "lm_head.": "model.transformer.ff_out.",
        "model.layers.": "model.transformer.blocks.",
        **{f".{network}.": f".{published}." for published, network in llada.BLOCK.items()},
    }
    named: Weights = {}
    for key, value in weights.items():
        for network, published in renamed.items():
            key = key.replace(network, published)
        named[key] = value
    return named


def _llada_moe(s: Any) -> Config:
    config = _sizes(s) | {
        **_custom_code(
            "LLaDAMoEModelLM",
            "llada",
            "modeling_lladamoe",
            "AutoModelForCausalLM",
            AutoModel="LLaDAMoEModel",
        ),
        "num_key_value_heads": s.heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000,
        "rope_scaling": None,
        "attention_bias": False,
        "clip_qkv": None,
        "dense_intermediate_size": s.ffn,
        "expert_intermediate_size": s.ffn // 2,
        "moe_layer_freq": [0] + [1] * (s.layers - 1),  # the published model has no dense layer
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "norm_topk_prob": None,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "partial_rotary_factor": 1,
        "qk_layernorm": True,
        "routed_scaling_factor": 1.0,
        "router_num_group": None,
        "router_topk_group": None,
        "shared_expert_intermediate_size": None,
    }
    config.pop("intermediate_size")
    return config


def _rnd1(s: Any) -> Config:
    return _sizes(s) | {
        **_custom_code("RND1LM", "rnd1", "modeling_rnd", "AutoModelForMaskedLM"),
        "attention_bias": False,
        "head_dim": s.width // s.heads,
        "decoder_sparse_step": 1,
        "mask_token_id": 259,
        "mlp_only_layers": [],
        "moe_backend": "hf",
        "moe_intermediate_size": s.ffn // 2,
        "norm_topk_prob": True,
        "num_diffusion_steps": 256,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "rope_scaling": False,
        "sliding_window": False,
        "use_sliding_window": False,
        "max_window_layers": 48,
    }


def _llada2(s: Any) -> Config:
    return _sizes(s) | {
        **_custom_code(
            "LLaDA2MoeModelLM", "llada2_moe", "modeling_llada2_moe", "AutoModelForCausalLM"
        ),
        "first_k_dense_replace": 1,
        "head_dim": s.width // s.heads,
        "moe_intermediate_size": s.ffn // 2,
        "moe_router_enable_expert_bias": True,
        "n_group": 4,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None,
        "rope_theta": 600000,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "sliding_window": 4096,
        "topk_group": 2,
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "use_sliding_window": False,
    }


def _llada2_names(weights: Weights) -> Weights:
    """Return the weights as LLaDA 2 publishes them: q, k and v in one tensor, and other key names."""
    renamed = {
        "model.embed_tokens.": "model.word_embeddings.",
        "self_attn.q_norm": "attention.query_layernorm",
        "self_attn.k_norm": "attention.key_layernorm",
        "self_attn.o_proj": "attention.dense",
        "gate.e_score_correction_bias": "gate.expert_bias",
    }
    named: Weights = {}
    for key, value in split_experts(weights).items():
        if key.endswith(("k_proj.weight", "v_proj.weight")):
            continue
        if key.endswith("q_proj.weight"):
            stem = key.removesuffix("self_attn.q_proj.weight")
            parts = [weights[f"{stem}self_attn.{part}_proj.weight"] for part in "qkv"]
            named[f"{stem}attention.query_key_value.weight"] = torch.cat(parts)
            continue
        for ours, theirs in renamed.items():
            key = key.replace(ours, theirs)
        named[key] = value
    return named


def _sdar(s: Any) -> Config:
    return _sizes(s) | {
        **_custom_code("SDARForCausalLM", "sdar", "modeling_sdar", "AutoModelForCausalLM"),
        "attention_bias": False,
        "head_dim": s.width // s.heads,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _sdar_moe(s: Any) -> Config:
    return _sdar(s) | {
        **_custom_code(
            "SDARMoeForCausalLM", "sdar_moe", "modeling_sdar_moe", "AutoModelForCausalLM"
        ),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": s.ffn // 2,
        "norm_topk_prob": True,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
    }


def _fast_dllm(s: Any) -> Config:
    return _sizes(s) | {
        **_custom_code(
            "Fast_dLLM_QwenForCausalLM",
            "Fast_dLLM_Qwen",
            "modeling",
            "AutoModelForCausalLM",
            AutoModel="Fast_dLLM_QwenModel",
        ),
        "bd_size": 4,  # 32 in the published model
        "layer_types": ["full_attention"] * s.layers,
        "max_window_layers": s.layers,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _nemotron(s: Any) -> Config:
    config = _sizes(s) | {
        **_custom_code(
            "NemotronLabsDiffusionModel",
            "nemotron_labs_diffusion",
            "modeling_nemotron_labs_diffusion",
            "AutoModel",
        ),
        "attention_bias": False,
        "block_size": 4,  # 32 in the published models
        "dlm_paradigm": "sbd_block_diff",
        "head_dim": s.width // s.heads,
        "mask_token_id": 259,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 16.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": s.context // 16,  # 16384 in the published models
            "rope_theta": 1000000.0,
            "rope_type": "yarn",
            "type": "yarn",
        },
        "sliding_window": None,
    }
    config.pop("rope_theta")
    return config


def _nemotron_names(weights: Weights) -> Weights:
    return {
        "diffusion_head.weight"
        if key == "lm_head.weight"
        else key.replace("model.", "encoder.", 1): value
        for key, value in weights.items()
    }


def _a2d(base: str) -> Callable[[Any], Config]:
    kind = base.lower()

    def config(s: Any) -> Config:
        file = f"modeling_{kind}"
        code_fields = _custom_code(
            f"A2D{base}LMHeadModel", f"a2d-{kind}", file, "AutoModelForMaskedLM"
        )
        return (
            _sizes(s) | code_fields | ({"head_dim": s.width // s.heads} if base == "Qwen3" else {})
        )

    return config


def _bert(s: Any) -> Config:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": s.width,
        "initializer_range": 0.02,
        "intermediate_size": s.ffn,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": s.context,
        "num_attention_heads": s.heads,
        "num_hidden_layers": s.layers,
        "pad_token_id": 258,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": s.vocab,
    }


def _roberta(s: Any) -> Config:
    declared = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
    sizes = {"layer_norm_eps": 1e-5, "pad_token_id": 1, "max_position_embeddings": s.context + 2}
    return _bert(s) | declared | sizes | {"type_vocab_size": 1}


def _albert(s: Any) -> Config:
    return _bert(s) | {
        "architectures": ["AlbertForMaskedLM"],
        "model_type": "albert",
        "hidden_act": "gelu_new",
        "embedding_size": s.width // 2,
        "inner_group_num": 1,
        "num_hidden_groups": 1,
        "classifier_dropout_prob": 0.1,
        "net_structure_type": 0,
    }


def _distilbert(s: Any) -> Config:
    return {
        "architectures": ["DistilBertForMaskedLM"],
        "model_type": "distilbert",
        "activation": "gelu",
        "attention_dropout": 0.1,
        "dim": s.width,
        "dropout": 0.1,
        "hidden_dim": s.ffn,
        "initializer_range": 0.02,
        "max_position_embeddings": s.context,
        "n_heads": s.heads,
        "n_layers": s.layers,
        "pad_token_id": 258,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "vocab_size": s.vocab,
    }


def _modernbert(s: Any) -> Config:
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "attention_bias": False,
        "classifier_activation": "gelu",
        "decoder_bias": True,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "hidden_activation": "gelu",
        "hidden_size": s.width,
        "intermediate_size": s.ffn,
        "max_position_embeddings": s.context,
        "cls_token_id": 256,
        "sep_token_id": 257,
        "norm_bias": False,
        "norm_eps": 1e-5,
        "num_attention_heads": s.heads,
        "num_hidden_layers": s.layers,
        "pad_token_id": 258,
        "vocab_size": s.vocab,
    }


FORMATS = {
    "LLaDA": Format(_llada, _llada_names),
    "Dream": Format(_dream),
    "Llama": Format(_stock("LlamaForCausalLM", "llama")),
    "Qwen2": Format(_stock("Qwen2ForCausalLM", "qwen2")),
    "Qwen3": Format(_qwen3),
    "LLaDA-MoE": Format(_llada_moe, split_experts),
    "RND1": Format(_rnd1, split_experts),
    "LLaDA2": Format(_llada2, _llada2_names),
    "SDAR": Format(_sdar),
    "SDAR-MoE": Format(_sdar_moe, split_experts),
    "Fast-dLLM": Format(_fast_dllm),
    "Nemotron": Format(_nemotron, _nemotron_names),
    "A2D-Qwen3": Format(_a2d("Qwen3")),
    "A2D-Qwen2": Format(_a2d("Qwen2")),
    "A2D-Llama": Format(_a2d("Llama")),
    "BERT": Format(_bert),
    "RoBERTa": Format(_roberta),
    "ALBERT": Format(_albert),
    "DistilBERT": Format(_distilbert),
    "ModernBERT": Format(_modernbert),
}
