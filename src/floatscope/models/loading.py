"""Load a Model from a directory, a GGUF file, a hub id or a transformers model.

`opening` reads the weights; pickles and code that comes with a checkpoint are refused. This module merges
an adapter and determines how the network is used: direction, mask, dtype.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from ..errors import ModelError
from . import adapters, attention_hook, devices, opening, outline, permuted, source, stated, twin
from .model import Model
from .opening import Opened
from .registry import family_by_name, family_of
from .stated import Stated

M = TypeVar("M", bound=Model)


def load(
    where: str | Path | PreTrainedModel,
    *,
    into: type[M],
    name: str | None = None,
    adapter: str | Path | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    tokenizer: Any = None,
    family: str | None = None,
    direction: str | None = None,
    block: int | None = None,
    shift: int | None = None,
    mask_id: int | None = None,
    override_mask: bool | None = None,
    grid: str | None = None,
    revision: str | None = None,
    weights: str = permuted.TRAINED,
    seed: int = 0,
) -> M:
    """Load `where` as a model of class `into`; see `floatscope.load` for the arguments."""
    permuted.require_known(weights, seed)
    asked = Stated(name, family, direction, block, shift, mask_id, override_mask, grid)
    if isinstance(where, PreTrainedModel):
        if adapter is not None or dtype != "auto" or device is not None or revision is not None:
            raise ModelError(
                "adapter, dtype, device and revision are for loading, and this network is loaded",
                "Leave them out; merge an adapter and use network.to(...) before.",
            )
        opened = _given(where, tokenizer, family)
        devices.require_here(opened.net, opened.name)
        opened = replace(opened, name=name or opened.name)
        if weights == permuted.PERMUTED:
            opened = replace(opened, net=permuted.copied(opened.net, seed))
        model = _model(opened, asked, into)
    else:
        spread = device == devices.SPREAD
        if spread and adapter is not None:
            raise ModelError("device='auto' with an adapter", "Merge it first, or use one device.")
        if spread and importlib.util.find_spec("accelerate") is None:
            raise ModelError("device='auto' needs the package accelerate", "pip install accelerate")
        device = _device(None if spread else device)
        wanted = _dtype(dtype, device)
        path, part = source.locate(where, revision), twin.adapter(where, adapter)
        source.require_no_other_adapter(path, part)
        asked = asked.over(stated.read(part).over(stated.read(outline.folder(path))))
        # A merge is made with all digits, and cast afterwards.
        exact = wanted if part is None or wanted is torch.float64 else torch.float32
        told = asked.direction is not None
        opened = opening.opened(path, exact, tokenizer, asked.family, told=told, spread=spread)
        changes = None if part is None else adapters.read(part)
        if changes is not None:
            adapters.merge(opened.net, changes, opened.kind.key_mapping)
        called = asked.name or (str(where) if adapter is None else f"{where} + {adapter}")
        model = _model(replace(opened, name=called), asked, into)
        if changes is not None:
            adapters.reproduce(model, changes.path)
        _cast(model.net, wanted)
        if spread:
            devices.require_here(model.net, model.name)
        else:
            model.net.to(device)
        if weights == permuted.PERMUTED:
            permuted.permute(model.net, seed)
        full = getattr(model.net.config, "rope_full_precision", True)
        if opened.kind.fp32_rope and full and wanted is not torch.float32:
            model.net.set_attn_implementation(attention_hook.NAME)
            attention_hook.rotate_in_fp32(model.net)
    if weights == permuted.PERMUTED:
        model.name = permuted.named(model.name, seed)
    return model


def _given(net: PreTrainedModel, tokenizer: Any, family: str | None) -> Opened:
    name = str(net.config.name_or_path or type(net).__name__)
    kind = family_by_name(family) if family else family_of(type(net).__name__, name)
    if not isinstance(net, kind.network_class):
        raise ModelError(
            f"{kind.name} expects a {kind.network_class.__name__}, got a {type(net).__name__}",
            "Pass the checkpoint's directory or hub id instead.",
        )
    generation = getattr(net, "generation_config", None)  # an encoder has none
    return Opened(name, kind, net, tokenizer, generation)


def _model(opened: Opened, asked: Stated, into: type[M]) -> M:
    net, tokenizer, generation = opened.net, opened.tokenizer, opened.generation
    settled = outline.settled(opened.name, opened.kind, net.config, generation, tokenizer, asked)
    return into(name=opened.name, net=net, tokenizer=tokenizer, **settled)


def _cast(net: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast the parameters only: rotary frequencies keep their precision, as when loaded in `dtype`."""
    for parameter in net.parameters():
        parameter.data = parameter.data.to(dtype)
    net.config.dtype = dtype


def _device(device: str | torch.device | None) -> torch.device:
    try:
        there = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=there)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"no device {device!r} here ({str(error).splitlines()[0]})",
            "Use cpu, cuda with a GPU, or auto for all there are.",
        ) from error
    return there


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":  # bf16 on a CPU is slow, and on some CPUs dies with an illegal instruction
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    known = getattr(torch, dtype, None)
    if known not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        raise ModelError(f"no dtype {dtype!r}", "Use float32, bfloat16, float16 or auto.")
    return known
