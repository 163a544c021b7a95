"""Writes and reads the release: Hugging Face folders, and the pieces they travel in.

The causal model is a `LlamaForCausalLM`; the diffusion model has LLaDA's own config and key names
(it is a bidirectional Llama). Weights are bf16, embeddings tied.

    python -m training.export --checkpoint RUN --out DIR          a training state -> a folder
    python -m training.export --join PIECES --out DIR             pieces of a folder -> the folder

`pieces` cuts model.safetensors into files of at most 15 MiB for channels with a size limit, with
a checksum of the whole; `join` puts them together again and verifies it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.common import BOS, EOS, MASK, PAD, TOKENIZER, UsageError
from training.model import Block, Config, Model
from training.tokenizer import hf_config

PIECE = 15 * 2**20
LLAMA = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "block": "model.layers.{i}.",
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "out": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
LLADA = {
    "embed": "model.transformer.wte.weight",
    "norm": "model.transformer.ln_f.weight",
    "block": "model.transformer.blocks.{i}.",
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ff_norm.weight",
    "q": "q_proj.weight",
    "k": "k_proj.weight",
    "v": "v_proj.weight",
    "out": "attn_out.weight",
    "gate": "ff_proj.weight",
    "up": "up_proj.weight",
    "down": "ff_out.weight",
}


def tensors(model: Model) -> dict[str, Tensor]:
    """The weights under the family's key names; q, k, v and gate, up taken apart."""
    names = LLAMA if model.causal else LLADA
    out: dict[str, Tensor] = {names["embed"]: model.embed, names["norm"]: model.norm}
    blocks: list[Block] = list(model.blocks)  # type: ignore[arg-type]
    for i, b in enumerate(blocks):
        q, k, v = b.qkv.chunk(3)  # (3 · width, width) -> three of (width, width)
        gate, up = b.gate_up.chunk(2)
        for key, value in (
            ("attn_norm", b.attn_norm),
            ("mlp_norm", b.mlp_norm),
            ("q", q),
            ("k", k),
            ("v", v),
            ("out", b.out),
            ("gate", gate),
            ("up", up),
            ("down", b.down),
        ):
            out[names["block"].format(i=i) + names[key]] = value
    return {k: v.detach().cpu().contiguous() for k, v in out.items()}


def hf_model_config(c: Config, *, causal: bool) -> dict[str, object]:
    if causal:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": c.width,
            "intermediate_size": c.hidden,
            "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads,
            "num_key_value_heads": c.heads,
            "head_dim": c.head_dim,
            "vocab_size": c.vocab,
            "max_position_embeddings": c.context,
            "rms_norm_eps": c.eps,
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": c.theta},
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "dtype": "bfloat16",
        }
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "block_type": "llama",
        "d_model": c.width,
        "mlp_hidden_size": c.hidden,
        "n_layers": c.layers,
        "n_heads": c.heads,
        "n_kv_heads": c.heads,
        "vocab_size": c.vocab,
        "embedding_size": c.vocab,
        "max_sequence_length": c.context,
        "rope": True,
        "rope_theta": c.theta,
        "rms_norm_eps": c.eps,
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "weight_tying": True,
        "include_bias": False,
        "include_qkv_bias": False,
        "mask_token_id": MASK,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "torch_dtype": "bfloat16",
    }


def export(model: Model, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """config.json, model.safetensors, tokenizer.json, tokenizer_config.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.to(dtype) for k, v in tensors(model).items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = hf_model_config(model.config, causal=model.causal)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(hf_config(), indent=1) + "\n")


def load_exported(folder: Path) -> Model:
    """The training module with an exported folder's weights, in float32."""
    config = json.loads((folder / "config.json").read_text())
    causal = config["architectures"] == ["LlamaForCausalLM"]
    if causal:
        c = Config(
            layers=config["num_hidden_layers"],
            width=config["hidden_size"],
            heads=config["num_attention_heads"],
            hidden=config["intermediate_size"],
            vocab=config["vocab_size"],
            context=config["max_position_embeddings"],
        )
    else:
        c = Config(
            layers=config["n_layers"],
            width=config["d_model"],
            heads=config["n_heads"],
            hidden=config["mlp_hidden_size"],
            vocab=config["vocab_size"],
            context=config["max_sequence_length"],
        )
    model = Model(c, causal=causal)
    names = LLAMA if causal else LLADA
    w = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    state = {"embed": w[names["embed"]], "norm": w[names["norm"]]}
    for i in range(c.layers):
        of = {
            k: w[names["block"].format(i=i) + names[k]]
            for k in ("attn_norm", "mlp_norm", "q", "k", "v", "out", "gate", "up", "down")
        }
        at = f"blocks.{i}."
        state |= {
            at + "qkv": torch.cat((of["q"], of["k"], of["v"])),
            at + "gate_up": torch.cat((of["gate"], of["up"])),
            at + "attn_norm": of["attn_norm"],
            at + "mlp_norm": of["mlp_norm"],
            at + "out": of["out"],
            at + "down": of["down"],
        }
    model.load_state_dict(state)
    return model


def pieces(folder: Path, out: Path, prefix: str) -> list[Path]:
    """Cut the folder's weights into `prefix`-NN.part files, with `prefix`.json to join them."""
    out.mkdir(parents=True, exist_ok=True)
    blob = (folder / "model.safetensors").read_bytes()
    paths = []
    for n, start in enumerate(range(0, len(blob), PIECE)):
        paths.append(out / f"{prefix}-{n:02d}.part")
        paths[-1].write_bytes(blob[start : start + PIECE])
    record = {
        "parts": [p.name for p in paths],
        "bytes": len(blob),
        "sha256": hashlib.sha256(blob).hexdigest(),
        "config": json.loads((folder / "config.json").read_text()),
    }
    paths.append(out / f"{prefix}.json")
    paths[-1].write_text(json.dumps(record, indent=1))
    return paths


def join(source: Path, folder: Path) -> None:
    """The folder again, from the .json that `pieces` wrote; refuses what does not add up."""
    record = json.loads(source.read_text())
    blob = b"".join((source.parent / name).read_bytes() for name in record["parts"])
    if hashlib.sha256(blob).hexdigest() != record["sha256"]:
        raise UsageError(
            f"the pieces of {source} do not give the weights that were cut: "
            f"{len(blob)} bytes here, {record['bytes']} there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(blob)
    (folder / "config.json").write_text(json.dumps(record["config"], indent=1) + "\n")
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(hf_config(), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="a training run's folder")
    parser.add_argument("--join", type=Path, help="the .json beside the pieces")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.join:
        join(args.join, args.out)
    elif args.checkpoint:
        from training.state import load_model

        export(load_model(args.checkpoint), args.out)
    else:
        raise UsageError("give --checkpoint or --join")
    print(json.dumps({"out": str(args.out), "config": asdict(load_exported(args.out).config)}))


if __name__ == "__main__":
    main()
