"""Check the sizes in a network's config before the network is built or memory is allocated.

The sizes must be whole numbers that agree with each other, and the files must contain about as many
weights as the network would have, so that a false config cannot cause a large allocation. The names and
shapes of the tensors are checked when the weights are loaded.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import ModelError
from .family import Family

_REMEDY = "Copy the checkpoint again, or correct the number."
_OTHER_CONFIG = "The config belongs to another checkpoint, or files are missing: copy it again."
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class TensorCounts:
    """The number of tensors and weights in a checkpoint's files."""

    tensors: frozenset[str]  # their names
    weights: int


def positive_integer(value: Any, name: str) -> int:
    """Convert a positive whole number from JSON (4 or 4.0) to an int, or raise ModelError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value != int(value) or not 0 < value <= _LARGEST:
        raise ModelError(f"{name} = {value!r:.80}: expected a whole number above 0", _REMEDY)
    return int(value)


def require_numbers(fields: Mapping[str, Any], where: Path) -> dict[str, int]:
    """Return the sizes among a config's fields as ints; refuse a size that is no positive whole number."""
    sizes = {name: fields[name] for name in _SIZES if fields.get(name) is not None}
    return {name: positive_integer(value, f"{where}: {name}") for name, value in sizes.items()}


def require_sound(config: PretrainedConfig, where: Path) -> None:
    """Refuse a config whose sizes are not whole numbers or cannot be divided into heads."""
    size = require_numbers({name: getattr(config, name, None) for name in _SIZES}, where)
    heads = size["num_attention_heads"]
    for name, parts in (
        ("num_attention_heads", size.get("num_key_value_heads", heads)),
        ("hidden_size", 1 if "head_dim" in size else heads),
    ):
        if size[name] % parts:
            raise ModelError(
                f"{where}: {name} = {size[name]} cannot be divided into {parts} heads", _REMEDY
            )
    dim = size.get("head_dim", size["hidden_size"] // heads)
    if dim % 2:
        raise ModelError(
            f"{where}: heads of {dim} channels, but RoPE needs an even number", _REMEDY
        )


def in_safetensors(files: Iterable[Path]) -> TensorCounts:
    """Return the number of tensors and weights in safetensors files, from their headers."""
    weights: dict[str, int] = {}
    for file in files:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118
                weights[name] = math.prod(content.get_slice(name).get_shape())
    return TensorCounts(frozenset(weights), sum(weights.values()))


def require_experts(config: PretrainedConfig, path: Path, counts: TensorCounts) -> None:
    """Refuse files that lack tensors of an expert; experts are separate in files, joined on loading."""
    count = getattr(config, "num_experts", None) or getattr(config, "n_routed_experts", None)
    if not count:
        return
    single = [match for match in map(_EXPERT.fullmatch, counts.tensors) if match]
    places = {(match[1], match[3]) for match in single}
    parts = {part for _, part in places}
    expected = {
        f"{prefix}{n}.{part}" for prefix, _ in places for n in range(int(count)) for part in parts
    }
    require_complete(path, expected - counts.tensors, [], [])


_EXPERT = re.compile(r"(.+\.experts\.)(\d+)\.(.+)")


def without_weights(
    kind: Family, config: PretrainedConfig, where: Path, counts: TensorCounts
) -> PreTrainedModel:
    """Build the network on the meta device, without weights; refuse a network far larger than its files.

    If only a few tensors are missing, a later check reports their names.
    """
    layers = int(config.num_hidden_layers)
    if layers > len(counts.tensors):
        raise ModelError(
            f"{where}: {layers} layers in its config, but {len(counts.tensors)} tensors in its files",
            _OTHER_CONFIG,
        )
    with torch.device("meta"):
        net = kind.network_class(config)
    n_weights = sum(p.numel() for p in net.parameters())
    if n_weights > 2 * counts.weights + 1_000_000:
        raise ModelError(
            f"{where}: {n_weights:,} weights by its config, but {counts.weights:,} in its files",
            _OTHER_CONFIG,
        )
    return net


def require_complete(
    path: Path,
    missing: Iterable[str],
    left_over: Iterable[str],
    mis_shaped: Iterable[tuple[Any, ...]],
) -> None:
    """Raise ModelError for missing, extra or mis-shaped tensors: self-check "every tensor loaded"."""
    shapes_differ = [f"{name} is {tuple(a)}, expected {tuple(b)}" for name, a, b in mis_shaped]
    problems = []
    for problem, names in (
        ("missing", sorted(missing)),
        ("left over", sorted(left_over)),
        ("mis-shaped", sorted(shapes_differ)),
    ):
        if names:
            remainder = f" and {len(names) - 3} more" if len(names) > 3 else ""
            problems.append(f"{len(names)} tensors {problem}: {', '.join(names[:3])}{remainder}")
    if problems:
        raise ModelError(
            f"self-check 'every tensor loaded' failed for {path}: {'; '.join(problems)}",
            "The weights do not belong to this config.json, or the download is incomplete.",
        )
