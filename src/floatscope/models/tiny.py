"""Write tiny random checkpoints in each family's published format: key names, config, tokenizer files.

The checkpoints are for tests, benchmarks and trials without a trained checkpoint. The weights are random,
so such a model can test the instrument, but it has learned nothing about language.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from .registry import family_by_name
from .tiny_formats import FORMATS

SPECIALS = ("<|begin|>", "<|end|>", "<|pad|>", "<|mask|>")
BEGIN, END, PAD, MASK = range(256, 260)


@dataclass(frozen=True)
class Shape:
    """Sizes of a tiny model. The vocabulary is the 256 bytes and four special tokens.

    Args:
        layers: number of layers, default 3.
        width: width of the residual stream, default 32.
        heads: query heads per layer, default 4.
        kv_heads: key and value heads per layer, default 2.
        ffn: width of the feed-forward layers, default 48.
        context: longest sequence in tokens, default 512.
        vocab: vocabulary size of the network, default 264; the tokenizer has 260 tokens.
        seed: seed of the weights, default 0.
        spread: standard deviation of the weights, default 0.2, large enough for uneven attention.
        dtype: dtype of the weights, "float32" by default.
        device: device on which the weights are drawn, "cpu" by default; use a GPU for large models.
    """

    layers: int = 3
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 48
    context: int = 512
    vocab: int = 264  # a few more than the tokenizer has, as in published models
    seed: int = 0
    spread: float = 0.2  # standard deviation of the weights: large enough for uneven attention
    dtype: str = "float32"
    device: str = "cpu"  # device on which weights are drawn; a GPU for large models


def write(family: str, path: str | Path, shape: Shape | None = None, *, shards: int = 1) -> Path:
    """Write a random checkpoint and return its directory.

    Args:
        family: name of the family, as listed by `floatscope models`.
        path: directory to write to; created if needed.
        shape: sizes of the model; `Shape()` by default.
        shards: number of safetensors files, default 1.
    """
    path, shape = Path(path), shape or Shape()
    path.mkdir(parents=True, exist_ok=True)
    name = family_by_name(family).name
    ends = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}
    config = ends | FORMATS[name].config(shape)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(_weights(name, config, shape), path, shards)
    _write_tokenizer(path, bare=name == "Dream")
    return path


def _weights(name: str, config: dict[str, Any], s: Shape) -> dict[str, Tensor]:
    """Return random weights of the family's network, under the family's published key names."""
    kind = family_by_name(name)
    with torch.device("meta"):
        net = kind.network_class(kind.config(config))
    generator = torch.Generator(s.device).manual_seed(s.seed)
    weights = {}
    tied = set(getattr(net, "all_tied_weights_keys", ()))  # saved once, as in published checkpoints
    for key, parameter in net.state_dict().items():
        values = torch.randn(parameter.shape, generator=generator, device=s.device) * s.spread
        is_scale = "norm" in key.lower() and not key.endswith("bias")
        weights[key] = (values + 1 if is_scale else values).to(getattr(torch, s.dtype))
    weights = {key: value for key, value in weights.items() if key not in tied}
    return FORMATS[name].named(weights)


def _write_weights(weights: dict[str, Tensor], path: Path, shards: int) -> None:
    if shards == 1:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    for n in range(shards):
        name = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(weights.items())[n::shards])
        save_file(part, path / name, metadata={"format": "pt"})
        where |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_tokenizer(path: Path, *, bare: bool) -> None:
    """Write a tokenizer of bytes and four special tokens; if `bare`, as vocab.json and merges.txt."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    names = dict(zip(("bos_token", "eos_token", "pad_token", "mask_token"), SPECIALS, strict=True))
    decoder = {
        str(256 + i): {
            "content": token,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for i, token in enumerate(SPECIALS)
    }
    settings = {**names, "added_tokens_decoder": decoder}
    if bare:
        (path / "vocab.json").write_text(json.dumps(vocab))
        (path / "merges.txt").write_text("#version: 0.2\n")
        settings["tokenizer_class"] = "DreamTokenizer"
    else:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIALS])
        tokenizer.save(str(path / "tokenizer.json"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
