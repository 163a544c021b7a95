"""Build a network from a GGUF file: its config, and its tensors dequantised under the network's names.

The network equals the network that transformers builds, bit for bit, and the file is read in one pass.
Scaled rotations are not supported and raise an error; transformers ignores them. Diffusion models, which
transformers does not read from GGUF, are read in the format that llama.cpp's converter writes
(ggml-org/llama.cpp, conversion/llada.py, dream.py, qwen.py). The tokenizer is read by `source`.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import ModelError
from . import sizes, source
from .family import Direction, Family
from .gguf_header import Header, Place
from .registry import family_of

_FIELDS = {  # GGUF field after the architecture's name and a dot → config field
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "rope.freq_base": "rope_theta",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}
_TOKENS = {  # GGUF field of the tokenizer → tokenizer setting
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "mask_token_id": "mask_token_id",
}
_HEAD = {
    "llama": "rope.dimension_count",
    "llada": "rope.dimension_count",
    "qwen3": "attention.key_length",
    "llada-moe": "attention.key_length",
    "rnd1": "attention.key_length",
}
# whether experts' weights are normalised, if the file does not state it
_NORMED = {"llada-moe": False, "rnd1": True}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
# Each tensor has all experts of a layer; the network joins the first two of these tensors into one.
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.gate_up_proj",
    "ffn_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llada": "LLaDAModelLM",
    "dream": "DreamModel",
    "llada-moe": "LLaDAMoEModelLM",
    "rnd1": "RND1LM",
}
_TURNED = ("llama", "llada")  # architectures whose q and k llama.cpp stores in another order
_AT_ONCE = 8192  # number of blocks dequantised together, so that they fit a core's cache


def config_of(
    header: Header, path: Path, *, direction_given: bool = False
) -> tuple[Family, PretrainedConfig]:
    """Return the family and the config that the header describes.

    With `direction_given`, the file's direction is ignored, because the user gave the direction.
    """
    fields, architecture = header.fields, str(header.fields.get("general.architecture"))
    kind = family_of(_ARCHITECTURES.get(architecture, architecture), path)
    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(
            f"{path}: positions are scaled ({scaling!r:.40}), which is not read from GGUF files",
            "Load the checkpoint's safetensors instead.",
        )
    causal = fields.get(f"{architecture}.attention.causal", kind.direction is Direction.CAUSAL)
    if not direction_given and causal is not (kind.direction is Direction.CAUSAL):
        raise ModelError(
            f"{path}: a {kind.name} is {kind.direction}, but the file has attention.causal = {causal}",
            "State the direction: direction=..., with shift= and mask_id= if the model is not causal.",
        )
    names = _FIELDS | {_HEAD.get(architecture, ""): "head_dim"}
    settings = {
        ours: fields[f"{architecture}.{theirs}"]
        for theirs, ours in names.items()
        if f"{architecture}.{theirs}" in fields
    }
    settings.setdefault("vocab_size", fields.get("tokenizer.ggml.tokens"))
    settings |= {
        ours: fields[f"tokenizer.ggml.{theirs}"]
        for theirs, ours in _TOKENS.items()
        if f"tokenizer.ggml.{theirs}" in fields
    }
    sizes.require_numbers(settings, path)
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if settings.get(name) is None:
            raise ModelError(f"{path} has no {name}", "Download or copy it again.")
    if "num_experts" in settings:
        settings.setdefault("norm_topk_prob", _NORMED.get(architecture, False))
    if kind.direction is not Direction.CAUSAL:
        settings["is_causal"] = False
    if "diffusion.shift_logits" in fields:
        settings["shift_logits"] = bool(fields["diffusion.shift_logits"])
    tied = "output.weight" not in header.tensors
    return kind, kind.network_class.config_class(**settings, tie_word_embeddings=tied)


def network_of(
    header: Header, path: Path, kind: Family, empty: PreTrainedModel, dtype: torch.dtype
) -> PreTrainedModel:
    """Build the network and fill in its weights; raise ModelError for missing or extra tensors."""
    # Tied parameters are listed once.
    expected = {name: tuple(p.shape) for name, p in empty.named_parameters()}
    config = empty.config
    places: dict[str, list[Place]] = {}
    # sorted, so that an expert's gate precedes its up projection
    for theirs in sorted(header.tensors):
        places.setdefault(_name(theirs), []).append(header.tensors[theirs])
    shapes = {
        name: _joined_shape([tensor.shape for tensor in parts]) for name, parts in places.items()
    }
    sizes.require_complete(
        path,
        missing=set(expected) - set(places),
        left_over=set(places) - set(expected),
        mis_shaped=[
            (name, shapes[name], shape)
            for name, shape in expected.items()
            if name in shapes and shapes[name] != shape
        ],
    )
    content = np.memmap(path, mode="r", dtype=np.uint8)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    turned = header.fields["general.architecture"] in _TURNED
    weights = {}
    for name, parts in places.items():
        values = _dequantised(content, parts[0])
        if len(parts) > 1:
            values = np.concatenate(
                [values, *(_dequantised(content, part) for part in parts[1:])], 1
            )
        module = name.split(".")[-2]
        if turned and module in heads:
            values = _halves(values, heads[module])
        weights[name] = torch.from_numpy(values).to(dtype)
    net: PreTrainedModel = kind.network_class.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=dtype,
        attn_implementation="sdpa",
        experts_implementation="eager" if dtype is torch.float64 else None,
        **source.NO_CODE,
    )
    net.config.name_or_path = str(path)
    return net


def _name(theirs: str) -> str:
    """Return the network's name for a GGUF tensor; an unknown name stays unchanged and is refused later."""
    stem, _, end = theirs.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{end}"
    _, number, part = [*stem.split(".", 2), "", ""][:3]
    if stem.startswith("blk.") and part in _LAYER:
        return f"model.layers.{number}.{_LAYER[part]}.{end}"
    if stem.startswith("blk.") and part in _EXPERTS:
        return f"model.layers.{number}.{_EXPERTS[part]}"
    return theirs


def _joined_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape after joining along the second dimension; if impossible, the shapes concatenated."""
    first = shapes[0]
    if len(shapes) == 1 or any(len(s) != 3 or s[::2] != first[::2] for s in shapes):
        return first if len(shapes) == 1 else tuple(n for s in shapes for n in s)
    return first[0], sum(s[1] for s in shapes), first[2]


def _dequantised(content: Shaped[np.ndarray, " bytes"], place: Place) -> Float[np.ndarray, "..."]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(place.kind)
    block, width = GGML_QUANT_SIZES[kind]
    blocks = content[place.start : place.start + place.size]
    values = np.empty(place.size // width * block, dtype=np.float32)
    for start in range(0, place.size // width, _AT_ONCE):
        part = blocks[start * width : (start + _AT_ONCE) * width]
        values[start * block : (start + _AT_ONCE) * block] = dequantize(part[None], kind)[0]
    return values.reshape(place.shape)


def _halves(values: Float[np.ndarray, "out *in"], heads: int) -> Float[np.ndarray, "out *in"]:
    """Reorder each head's rows: llama.cpp rotates neighbouring rows, transformers rows of two halves."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
