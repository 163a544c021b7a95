"""Load a Model from a directory, a GGUF file, a hub id or a transformers model.

`opening` reads the weights; pickles, and code in a checkpoint, are refused. This module merges an adapter
into the weights and determines the network's direction, mask and dtype.
"""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from ..errors import ModelError
from . import adapters, attention_hook, devices, opening, outline, permuted
from .model import Model
from .opening import Opened
from .registry import family_by_name, family_of
from .spec import ModelSettings

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, kw_only=True)
class Options(ModelSettings):
    """Options of `floatscope.load`, documented in its docstring."""

    adapter: str | Path | None = None
    dtype: str | torch.dtype = "auto"
    device: str | torch.device | None = None
    tokenizer: Any = None
    revision: str | None = None
    weights: str = permuted.TRAINED
    seed: int = 0


def load(where: str | Path | PreTrainedModel, *, into: type[M], **options: Any) -> M:
    """Load `where` as a model of class `into`; `options` are the fields of Options."""
    settings = Options(**options)
    permuted.require_known(settings.weights, settings.seed)
    if isinstance(where, PreTrainedModel):
        model = _of_network(where, settings, into)
    else:
        model = _of_checkpoint(where, settings, into)
    if settings.weights == permuted.PERMUTED:
        model.name = permuted.named(model.name, settings.seed)
    return model


def _of_network(net: PreTrainedModel, settings: Options, into: type[M]) -> M:
    loading_options = (settings.adapter, settings.dtype, settings.device, settings.revision)
    if loading_options != (None, "auto", None, None):
        raise ModelError(
            "adapter, dtype, device and revision apply to loading, but this network is already loaded",
            "Leave them out; merge an adapter and call network.to(...) first.",
        )
    opened = _open_network(net, settings.tokenizer, settings.family)
    devices.require_here(opened.net, opened.name)
    if settings.weights == permuted.PERMUTED:
        opened = replace(opened, net=permuted.copied(opened.net, settings.seed))
    return _model(replace(opened, name=settings.name or opened.name), settings, into)


def _of_checkpoint(where: str | Path, settings: Options, into: type[M]) -> M:
    spread = settings.device == devices.SPREAD
    if spread and settings.adapter is not None:
        raise ModelError("device='auto' with an adapter", "Merge it first, or use one device.")
    if spread and importlib.util.find_spec("accelerate") is None:
        raise ModelError("device='auto' needs the package accelerate", "pip install accelerate")
    device = _device(None if spread else settings.device)
    target_dtype = _dtype(settings.dtype, device)
    path, part, use = outline.located(where, settings, settings.adapter, settings.revision)
    # Merge in full precision and cast afterwards.
    exact = target_dtype if part is None or target_dtype is torch.float64 else torch.float32
    direction_given = use.direction is not None
    opened = opening.opened(
        path, exact, settings.tokenizer, use.family, direction_given=direction_given, spread=spread
    )
    changes = None if part is None else adapters.read(part)
    if changes is not None:
        adapters.merge(opened.net, changes, opened.kind.key_mapping)
    model = _model(replace(opened, name=str(use.name)), use, into)
    if changes is not None:
        adapters.reproduce(model, changes.path)
    _cast(model.net, target_dtype)
    if spread:
        devices.require_here(model.net, model.name)
    else:
        model.net.to(device)
    if settings.weights == permuted.PERMUTED:
        permuted.permute(model.net, settings.seed)
    full = getattr(model.net.config, "rope_full_precision", True)
    if opened.kind.fp32_rope and full and target_dtype is not torch.float32:
        model.net.set_attn_implementation(attention_hook.NAME)
        attention_hook.rotate_in_fp32(model.net)
    return model


def _open_network(net: PreTrainedModel, tokenizer: Any, family: str | None) -> Opened:
    name = str(net.config.name_or_path or type(net).__name__)
    kind = family_by_name(family) if family else family_of(type(net).__name__, name)
    if not isinstance(net, kind.network_class):
        raise ModelError(
            f"{kind.name} expects a {kind.network_class.__name__}, got a {type(net).__name__}",
            "Pass the checkpoint's directory or hub id instead.",
        )
    generation = getattr(net, "generation_config", None)  # encoders have none
    return Opened(name, kind, net, tokenizer, generation)


def _model(opened: Opened, settings: ModelSettings, into: type[M]) -> M:
    net, tokenizer, generation = opened.net, opened.tokenizer, opened.generation
    settled = outline.settled(opened.name, opened.kind, net.config, generation, tokenizer, settings)
    return into(name=opened.name, net=net, tokenizer=tokenizer, **settled)


def _cast(net: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast the network's parameters to `dtype`, but not its rotary frequencies, as transformers does."""
    for parameter in net.parameters():
        parameter.data = parameter.data.to(dtype)
    net.config.dtype = dtype


def _device(device: str | torch.device | None) -> torch.device:
    try:
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"no device {device!r} here ({str(error).splitlines()[0]})",
            "Use cpu, cuda on a machine with a GPU, or auto for all GPUs.",
        ) from error
    return target


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":  # bfloat16 is slow on CPUs, and some CPUs fail with an illegal instruction
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    torch_dtype = getattr(torch, dtype, None)
    if torch_dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise ModelError(f"no dtype {dtype!r}", "Use float32, bfloat16, float16 or auto.")
    return torch_dtype
