"""Read a network from a path: its family, its weights, its tokenizer.

Every tensor must be loaded: missing, extra and mis-shaped tensors are errors, never warnings. `loading`
determines the network's direction, mask and dtype.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import logging as hf_logging

from ..errors import ModelError, foreign
from . import devices, gguf_header, gguf_network, sizes, source, special
from .family import Family
from .registry import family_by_name, family_of


@dataclass(frozen=True)
class Opened:
    """A network with its weights, tokenizer and generation settings."""

    name: str
    kind: Family
    net: PreTrainedModel
    tokenizer: Any
    generation: Any = None  # generation config, which may name more end tokens than the config


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' reports on loading, because the errors of this module are more specific."""
    level, bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bar:
            hf_logging.enable_progress_bar()


@_quiet()
def opened(
    path: Path,
    dtype: torch.dtype,
    tokenizer: Any,
    family: str | None,
    *,
    direction_given: bool,
    spread: bool = False,
) -> Opened:
    """Read a checkpoint: its network with weights, its tokenizer and its generation settings.

    With `direction_given`, a checkpoint whose config.json declares a causal architecture may be a
    diffusion model, because the user gave the direction. With `spread`, the layers are placed on all
    devices.
    """
    if path.suffix == ".gguf" and spread:
        raise ModelError(
            "device='auto' with a GGUF file", "Choose one device, or load safetensors."
        )
    if path.suffix == ".gguf" and family is not None:
        raise ModelError("a GGUF file states its family", "Leave family out.")
    if path.suffix == ".gguf":
        kind, net = _from_gguf(path, dtype, direction_given)
    else:
        kind, net = _from_directory(path, dtype, family, spread)
    tokenizer = tokenizer or source.tokenizer(path, kind)
    if not direction_given and path.is_dir():
        special.require_undisguised(str(path), kind, source.read_config(path), tokenizer)
    generation = source.read_generation(path) if path.is_dir() else None
    return Opened(str(path), kind, net.eval(), tokenizer, generation)


def described(path: Path, family: str | None) -> tuple[Family, PreTrainedModel]:
    """Return a directory's family and its network on the meta device, for which no weights are read."""
    source.require_files(path)
    raw = source.read_config(path)
    kind = family_by_name(family) if family else family_of(source.architecture(raw, path), path)
    source.require_safetensors(path)
    file = path / "config.json"
    with foreign(ModelError, f"{file} does not describe a {kind.name} network", _COPY_CONFIG):
        try:
            sizes.require_numbers(kind.translate(raw), file)
            config = kind.config(raw)
        except KeyError as error:
            raise ModelError(
                f"{file} has no field {error}, which {kind.name} needs", _COPY_CONFIG
            ) from error
        sizes.require_sound(config, file)
    with foreign(ModelError, f"{path}: the weights cannot be read", _COPY_WEIGHTS):
        counts = sizes.in_safetensors(source.weight_files(path))
        net = sizes.without_weights(kind, config, path, counts)
        sizes.require_experts(config, path, counts)
    return kind, net


def _from_directory(
    path: Path, dtype: torch.dtype, family: str | None, spread: bool
) -> tuple[Family, PreTrainedModel]:
    kind, empty = described(path, family)
    with foreign(ModelError, f"{path}: the weights cannot be read", _COPY_WEIGHTS):
        try:
            net, info = kind.network_class.from_pretrained(
                # given a directory, transformers would search it for adapters and other weights
                None,
                config=empty.config,
                state_dict=_tensors(source.weight_files(path)),
                key_mapping=kind.key_mapping or None,
                dtype=dtype,
                attn_implementation="sdpa",
                # The grouped matrix product over experts does not support float64.
                experts_implementation="eager" if dtype is torch.float64 else None,
                ignore_mismatched_sizes=True,  # reported below with the shapes
                output_loading_info=True,
                device_map="auto" if spread else None,
                **source.NO_CODE,
            )
        except ValueError as error:
            if spread and "offload" in str(error):
                raise devices.elsewhere(str(path)) from error
            raise
    needless = re.compile("|".join(kind.unused) or r"(?!)")
    left_over = [key for key in info["unexpected_keys"] if not needless.search(key)]
    sizes.require_complete(path, info["missing_keys"], left_over, info["mismatched_keys"])
    net.config.name_or_path = str(path)
    kind.prepare(net)
    return kind, net


def _tensors(files: list[Path]) -> dict[str, Any]:
    """Return handles of all tensors by name; a tensor is read when it is copied into the network."""
    opened = [safe_open(file, framework="pt") for file in files]
    return {name: file.get_slice(name) for file in opened for name in file.keys()}  # noqa: SIM118


_COPY_CONFIG = "Copy the checkpoint's config.json again."
_COPY_WEIGHTS = "The files are damaged or incomplete: download or copy them again."


def _from_gguf(
    path: Path, dtype: torch.dtype, direction_given: bool
) -> tuple[Family, PreTrainedModel]:
    source.require_gguf()
    header = gguf_header.read(path)
    with foreign(ModelError, f"{path}: the file cannot be read", _COPY_WEIGHTS):
        kind, config = gguf_network.config_of(header, path, direction_given=direction_given)
        sizes.require_sound(config, path)
        empty = sizes.without_weights(kind, config, path, header.tensor_counts)
        return kind, gguf_network.network_of(header, path, kind, empty, dtype)
