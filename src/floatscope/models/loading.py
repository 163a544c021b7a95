"""From a directory, a GGUF file, a hub id or a transformers model to a Model.

Weights are loaded natively from safetensors or GGUF; pickles and code that comes with a checkpoint
are refused. Every tensor must arrive: missing, extra and mis-shaped ones are errors, never warnings.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as hf_logging

from ..errors import ModelError, foreign
from . import (
    adapters,
    gguf_header,
    gguf_network,
    permuted,
    seam,
    sizes,
    source,
    special,
    stated,
    twin,
)
from .family import Direction, Family
from .model import Model
from .registry import family_by_name, family_of
from .stated import Stated

M = TypeVar("M", bound=Model)


def load(
    where: str | Path | PreTrainedModel,
    *,
    into: type[M],
    adapter: str | Path | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    tokenizer: Any = None,
    family: str | None = None,
    direction: str | None = None,
    block: int | None = None,
    shift: int | None = None,
    mask_id: int | None = None,
    revision: str | None = None,
    weights: str = permuted.TRAINED,
    seed: int = 0,
) -> M:
    """Load `where` as a model of class `into`; see `floatscope.load` for the arguments."""
    permuted.require_known(weights, seed)
    asked = Stated(None, family, direction, block, shift, mask_id)
    if isinstance(where, PreTrainedModel):
        if adapter is not None or dtype != "auto" or device is not None or revision is not None:
            raise ModelError(
                "adapter, dtype, device and revision are for loading, and this network is loaded",
                "Leave them out; merge an adapter and use network.to(...) before.",
            )
        opened = _given(where, tokenizer, family)
        if weights == permuted.PERMUTED:
            opened = replace(opened, net=permuted.copied(opened.net, seed))
        model = _model(opened, asked, into)
    else:
        device = _device(device)
        wanted = _dtype(dtype, device)
        path, part = source.locate(where, revision), twin.adapter(where, adapter)
        asked = asked.over(stated.read(part).over(stated.read(_folder(path))))
        # A merge is made with all digits, and cast afterwards.
        exact = wanted if part is None or wanted is torch.float64 else torch.float32
        with _quiet():
            opened = _opened(path, exact, tokenizer, asked)
        changes = None if part is None else adapters.read(part)
        if changes is not None:
            adapters.merge(opened.net, changes, opened.kind.key_mapping)
        name = asked.name or (str(where) if adapter is None else f"{where} + {adapter}")
        model = _model(replace(opened, name=name), asked, into)
        if changes is not None:
            adapters.reproduce(model, changes.path)
        _cast(model.net, wanted)
        model.net.to(device)
        if weights == permuted.PERMUTED:
            permuted.permute(model.net, seed)
        if opened.kind.fp32_rope and wanted is not torch.float32:
            model.net.set_attn_implementation(seam.NAME)
            seam.fp32_rope(model.net)
    if weights == permuted.PERMUTED:
        model.name = permuted.named(model.name, seed)
    return model


@dataclass(frozen=True)
class _Opened:
    """A network with its weights, and what it came with."""

    name: str
    kind: Family
    net: PreTrainedModel
    tokenizer: Any


def _given(net: PreTrainedModel, tokenizer: Any, family: str | None) -> _Opened:
    name = str(net.config.name_or_path or type(net).__name__)
    kind = family_by_name(family) if family else family_of(type(net).__name__, name)
    if not isinstance(net, kind.network):
        raise ModelError(
            f"{kind.name} expects a {kind.network.__name__}, got a {type(net).__name__}",
            "Pass the checkpoint's directory or hub id instead.",
        )
    return _Opened(name, kind, net, tokenizer)


def _opened(path: Path, dtype: torch.dtype, tokenizer: Any, asked: Stated) -> _Opened:
    if path.suffix == ".gguf" and asked.family is not None:
        raise ModelError("a GGUF file names its own family", "Leave family out.")
    if path.suffix == ".gguf":
        kind, net = _from_gguf(path, dtype)
    else:
        kind, net = _from_directory(path, dtype, asked.family)
    tokenizer = tokenizer or source.tokenizer(path, kind)
    if asked.direction is None and path.is_dir():
        special.require_undisguised(str(path), kind, source.read_config(path), tokenizer)
    return _Opened(str(path), kind, net.eval(), tokenizer)


def _model(opened: _Opened, asked: Stated, into: type[M]) -> M:
    kind, net, tokenizer = opened.kind, opened.net, opened.tokenizer
    if getattr(net.config, "use_sliding_window", False):
        raise ModelError(
            f"{opened.name} uses sliding-window attention, which Floatscope does not measure",
            "Set use_sliding_window to false in its config.json if the context fits the window.",
        )
    block = kind.block if asked.block is None and asked.direction is None else asked.block
    toward = _direction(kind, asked.direction, block)
    return into(
        name=opened.name,
        net=net,
        tokenizer=tokenizer,
        family=replace(kind, direction=toward),
        direction=toward,
        block=block,
        shift=kind.shift if asked.shift is None else asked.shift,
        mask_id=special.mask_id(kind, toward, net.config, tokenizer, asked.mask_id),
        end_ids=special.end_ids(net.config, net.generation_config, tokenizer),
        chat=bool(getattr(tokenizer, "chat_template", None)),
    )


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _cast(net: PreTrainedModel, dtype: torch.dtype) -> None:
    """Parameters alone: a rotation's frequencies keep their digits, as when loaded in `dtype`."""
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
            "Use cpu, or cuda with a GPU.",
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


def _direction(kind: Family, given: str | None, block: int | None) -> Direction:
    toward = kind.direction if given is None else None
    if toward is None:
        if given not in list(Direction):
            raise ModelError(f"no direction {given!r}", f"Use one of: {', '.join(Direction)}.")
        toward = Direction(given)
    if (toward is Direction.BLOCK_CAUSAL) != (block is not None) or (
        block is not None and block < 1
    ):
        raise ModelError(
            f"direction {toward} with block {block}",
            "A block-causal model needs block=N, N ≥ 1; the others take none.",
        )
    return toward


def _from_directory(
    path: Path, dtype: torch.dtype, family: str | None
) -> tuple[Family, PreTrainedModel]:
    source.require_files(path)
    raw = source.read_config(path)
    kind = family_by_name(family) if family else family_of(source.architecture(raw, path), path)
    source.require_safetensors(path)
    file = path / "config.json"
    with foreign(ModelError, f"{file} describes no {kind.name} network", _COPY_CONFIG):
        try:
            sizes.require_numbers(kind.translate(raw), file)
            config = kind.config(raw)
        except KeyError as error:
            raise ModelError(
                f"{file} has no field {error}, which {kind.name} needs", _COPY_CONFIG
            ) from error
        sizes.require_sound(config, file)
    with foreign(ModelError, f"{path}: the weights cannot be read", _COPY_WEIGHTS):
        sizes.require_held(kind, config, path, sizes.in_safetensors(path))
        net, info = kind.network.from_pretrained(
            path,
            config=config,
            key_mapping=kind.key_mapping or None,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, with the shapes
            output_loading_info=True,
            **source.NO_CODE,
        )
    sizes.require_complete(
        path, info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"]
    )
    return kind, net


_COPY_CONFIG = "Copy the checkpoint's config.json again."
_COPY_WEIGHTS = "The files are damaged or incomplete: fetch or copy them again."


def _from_gguf(path: Path, dtype: torch.dtype) -> tuple[Family, PreTrainedModel]:
    source.require_gguf()
    header = gguf_header.read(path)
    with foreign(ModelError, f"{path}: the file cannot be read", _COPY_WEIGHTS):
        kind, config = gguf_network.config_of(header, path)
        sizes.require_sound(config, path)
        sizes.require_held(kind, config, path, header.held)
        return kind, gguf_network.network_of(header, path, kind, config, dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own loading reports say less than the errors raised here."""
    level, bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bar:
            hf_logging.enable_progress_bar()
