"""From a run to an adapter as it is shipped: PEFT's names, int8 with a scale a row.

    python -m training.twin.export --run trained/mdm --out src/floatscope/models/embedded/twin/mdm

`lora_A` and `lora_B` are rounded to int8; norms and the mask's embedding stay float32. rounded() is
what the shipped model computes with, so evaluation can use it before anything is written.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from training.twin.parent import LAYERS, MAPS, MASK


def to_int8(value: Tensor) -> tuple[Tensor, Tensor]:
    """(integers, scale): the last axis shares a scale, which broadcasts."""
    scale = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (value / scale).round().clamp(-127, 127).to(torch.int8), scale


def rounded(name: str, value: Tensor) -> Tensor:
    """A parameter of a run as it is after shipping; only A and B are rounded."""
    if not name.startswith(("a.", "b.")):
        return value
    whole, scale = to_int8(value)
    return whole.float() * scale


def shipped(run: Path) -> dict[str, Tensor]:
    """A run's adapter under PEFT's names: lora_A and lora_B in int8 with their scales."""
    out: dict[str, Tensor] = {}
    base = "base_model.model.model"
    with safe_open(run / "state.safetensors", "pt") as file:

        def of(name: str) -> Tensor:
            return file.get_tensor(f"weight.{name}")

        for name in MAPS:
            for letter in "ab":
                whole, scale = to_int8(of(f"{letter}.{name.replace('.', '_')}"))
                for layer in range(LAYERS):
                    key = f"{base}.layers.{layer}.{name}.lora_{letter.upper()}.weight"
                    out[key] = whole[layer].contiguous()
                    out[f"{key}.scale"] = scale[layer].contiguous()
        norms = of("norms")
        for layer in range(LAYERS):
            out[f"{base}.layers.{layer}.input_layernorm.weight"] = norms[layer, 0].contiguous()
            out[f"{base}.layers.{layer}.post_attention_layernorm.weight"] = norms[layer, 1].contiguous()
        out[f"{base}.norm.weight"] = of("norm")
        out[MASK_ROW] = of("mask")[None]
    return out


MASK_ROW = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"


def pieces(tensors: dict[str, Tensor], out: Path, stem: str, most: int = 15 * 2**20) -> None:
    """The tensors in files of at most `most` bytes."""
    from safetensors.torch import save_file

    part: dict[str, Tensor] = {}
    size, number = 0, 0
    for name in [*sorted(tensors), ""]:
        more = tensors[name].numel() * tensors[name].element_size() + 200 if name else most
        if part and size + more > most:
            save_file(part, out / f"{stem}.{number}.safetensors")
            part, size, number = {}, 0, number + 1
        if name:
            part[name] = tensors[name].cpu().contiguous()
            size += more
