"""Tiny random checkpoints as GGUF files, as llama.cpp would write them; `models.tiny` writes the others.

Needs the gguf package. The tokenizer has bytes, two special tokens and one merge; that of a diffusion
model also has a mask token.
"""

from pathlib import Path

import numpy as np
from tokenizers import pre_tokenizers

from floatscope.models.tiny import Shape

SPECIALS = ("<|begin|>", "<|end|>")
MASK = 259
_DIFFUSION = ("llada", "dream", "llada-moe", "rnd1")
_MIXED = ("llada-moe", "rnd1")
EXPERTS, CHOSEN = 6, 2


def write(
    folder: str | Path, architecture: str = "llama", kind: str = "F32", shape: Shape | None = None
) -> Path:
    """Write a random `model.gguf`, and return its path.

    `architecture` is a name of llama.cpp: llama, qwen2, qwen3, llada, dream, llada-moe or rnd1. `kind` is
    the type of the matrices, such as F16 or Q4_1.
    """
    import gguf

    folder, s = Path(folder), shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIALS, "ab"]
    masked = architecture in _DIFFUSION
    tokens += ["<|mask|>"] if masked else []
    out = gguf.GGUFWriter(folder / "model.gguf", architecture)
    out.add_block_count(s.layers)
    out.add_context_length(s.context)
    out.add_embedding_length(s.width)
    out.add_feed_forward_length(s.ffn)
    out.add_head_count(s.heads)
    out.add_head_count_kv(s.kv_heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_token_list(tokens)
    out.add_token_types([1] * 256 + [3, 3, 1] + [3] * masked)
    out.add_token_merges(["a b"])
    out.add_bos_token_id(256)
    out.add_eos_token_id(257)
    if architecture in ("qwen3", "rnd1"):
        out.add_key_length(s.width // s.heads)
    if masked:
        out.add_causal_attention(False)
        out.add_mask_token_id(MASK)
    if architecture.startswith("llada"):  # the others' converters write no shift
        out.add_diffusion_shift_logits(False)
    if architecture == "llada":
        out.add_rope_dimension_count(s.width // s.heads)
    if architecture in _MIXED:
        out.add_expert_count(EXPERTS)
        out.add_expert_used_count(CHOSEN)
        out.add_expert_feed_forward_length(s.ffn // 2)
    draw, matrix = np.random.default_rng(s.seed), gguf.GGMLQuantizationType[kind]
    for name, size in _sizes(architecture, s, len(tokens)).items():
        values = (draw.normal(0, s.spread, size) + ("norm" in name)).astype(np.float32)
        if values.ndim == 1:
            out.add_tensor(name, values)
        else:
            out.add_tensor(name, gguf.quants.quantize(values, matrix), raw_dtype=matrix)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return folder / "model.gguf"


def _sizes(architecture: str, s: Shape, vocab: int) -> dict[str, tuple[int, ...]]:
    head, square = s.width // s.heads, (s.width, s.width)
    kv, wide = head * s.kv_heads, (s.ffn, s.width)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (s.width,),
        "ffn_norm.weight": (s.width,),
        "attn_q.weight": square,
        "attn_k.weight": (kv, s.width),
        "attn_v.weight": (kv, s.width),
        "attn_output.weight": square,
        "ffn_gate.weight": wide,
        "ffn_up.weight": wide,
        "ffn_down.weight": wide[::-1],
    }
    if architecture in ("qwen2", "dream"):
        layer |= {"attn_q.bias": (s.width,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if architecture in _MIXED:
        narrow = s.ffn // 2
        layer = {name: size for name, size in layer.items() if not name.startswith("ffn_")}
        layer |= {
            "ffn_norm.weight": (s.width,),
            "ffn_gate_inp.weight": (EXPERTS, s.width),
            "ffn_gate_exps.weight": (EXPERTS, narrow, s.width),
            "ffn_up_exps.weight": (EXPERTS, narrow, s.width),
            "ffn_down_exps.weight": (EXPERTS, s.width, narrow),
        }
    if architecture in ("qwen3", *_MIXED):
        layer |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    return {
        "token_embd.weight": (vocab, s.width),
        "output.weight": (vocab, s.width),
        "output_norm.weight": (s.width,),
    } | {f"blk.{n}.{name}": size for n in range(s.layers) for name, size in layer.items()}
