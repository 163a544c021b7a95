"""Diffusion models as llama.cpp writes them: the numbers of their arithmetic, and what the metadata says."""

import numpy as np
import pytest
import tiny_gguf
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from published import FORWARDS, full, llama

import floatscope as fs
from floatscope.models.tiny import Shape

SHAPE = Shape(layers=2, width=64, heads=4, kv_heads=2, ffn=64)
SHIFTS = {"llada": 0, "dream": 1, "llada-moe": 0, "rnd1": 1}
NAMES = {
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


def tensors(file, architecture):
    """What lies in the file, by the published names; llama.cpp's order of q and k undone for LLaDA."""
    found = {}
    for one in GGUFReader(file).tensors:
        values = torch.from_numpy(
            dequantize(one.data, GGMLQuantizationType(one.tensor_type)).astype(np.float64)
        )
        stem, _, end = one.name.rpartition(".")
        whole = {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
        }
        if stem in whole:
            found[f"{whole[stem]}.{end}"] = values
            continue
        _, number, part = stem.split(".")
        layer = f"model.layers.{number}."
        if part.endswith("_exps"):
            for expert, matrix in enumerate(values):
                name = part.removeprefix("ffn_").removesuffix("_exps")
                found[f"{layer}mlp.experts.{expert}.{name}_proj.weight"] = matrix
            continue
        if architecture == "llada" and part in ("attn_q", "attn_k"):
            # The converter interleaved the halves of each head: even rows are the first half.
            heads = SHAPE.heads if part == "attn_q" else SHAPE.kv_heads
            by_head = values.unflatten(0, (heads, -1))
            values = torch.cat([by_head[:, 0::2], by_head[:, 1::2]], 1).flatten(0, 1)
        found[f"{layer}{NAMES[part]}.{end}"] = values
    return found


@pytest.mark.parametrize(
    ("architecture", "kind"), [(a, "F32") for a in SHIFTS] + [("rnd1", "Q8_0")]
)
def test_files_written_by_llama_cpp_are_read(tmp_path, architecture, kind):
    file = tiny_gguf.write(tmp_path, architecture, kind, SHAPE)
    model = fs.load(file, dtype="float64")
    assert (model.mask_id, model.shift) == (tiny_gguf.MASK, SHIFTS[architecture])
    assert model.direction == "bidirectional"
    config = {
        "hidden_size": SHAPE.width,
        "num_hidden_layers": SHAPE.layers,
        "num_attention_heads": SHAPE.heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "num_experts_per_tok": tiny_gguf.CHOSEN,
        "moe_layer_freq": [1] * SHAPE.layers,
        "norm_topk_prob": architecture == "rnd1",
    }
    forward = {"llada-moe": FORWARDS["LLaDA-MoE"], "rnd1": FORWARDS["RND1"]}.get(
        architecture, llama
    )
    ids = torch.randint(0, 256, (12,), generator=torch.Generator().manual_seed(5))
    done = forward(tensors(file, architecture), config, ids, full(len(ids)))
    torch.testing.assert_close(model.logits(ids[None])[0], done.logits, rtol=1e-5, atol=1e-5)
    trace = model.trace("Hello", fs.Confidence(length=4, steps=2))
    assert trace.info["shift"] == SHIFTS[architecture]


def test_metadata_decides_shift_and_direction(tmp_path):
    file = tiny_gguf.write(tmp_path, "llada", "F32", SHAPE)
    content = file.read_bytes()
    name, kind = b"diffusion.shift_logits", b"\x07\x00\x00\x00"
    assert content.count(name + kind + b"\x00") == 1
    file.write_bytes(content.replace(name + kind + b"\x00", name + kind + b"\x01"))
    assert fs.load(file, check=False).shift == 1
    assert fs.load(file, check=False, shift=0).shift == 0
    name = b"llada.attention.causal"
    file.write_bytes(content.replace(name + kind + b"\x00", name + kind + b"\x01"))
    with pytest.raises(fs.ModelError, match=r"attention.causal = True.*State the direction"):
        fs.load(file)
    assert fs.load(file, direction="causal", shift=1).mask_id is None


def test_an_expert_tensor_of_another_size_is_named(tmp_path):
    file = tiny_gguf.write(tmp_path, "llada-moe", "F32", SHAPE)
    file.write_bytes(
        file.read_bytes().replace(b"blk.1.ffn_up_exps.weight", b"blk.1.ffn_xx_exps.weight")
    )
    with pytest.raises(
        fs.ModelError, match=r"left over: blk.1.ffn_xx_exps.*mis-shaped: .*gate_up_proj"
    ):
        fs.load(file)
