"""Read and write the files of an adapter's directory: its settings and its tensors by module.

Besides PEFT's float tensors, a file may contain a tensor K as int8 with its factor `K.scale`, which takes
a quarter of the space of float32. (PEFT does not read such a file.)
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int8
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...errors import ModelError, UsageError, foreign
from ..source import ADAPTER_CONFIG as CONFIG
from ..source import read_json, require_files, require_safetensors
from .settings import Settings, ends, settings

WEIGHTS = "adapter_model.safetensors"
SCALE = ".scale"
_PREFIX = "base_model.model."
# End of a tensor's name → the part of the module that the tensor is.
_PARTS = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_B.bias": "B.bias",
    ".lora_embedding_A": "embedding A",
    ".lora_embedding_B": "embedding B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".token_adapter.trainable_tokens_delta": "rows",
    ".trainable_tokens_delta": "rows",
    ".base_layer.weight": "weight",
    ".base_layer.bias": "bias",
    ".weight": "weight",
    ".bias": "bias",
}
_TOGETHER = (("A", "B"), ("embedding A", "embedding B"))
_COPY = "The adapter is damaged or incomplete: copy it again."


@dataclass(frozen=True)
class Adapter:
    """The contents of an adapter's directory: its settings, and its tensors by module and part."""

    path: Path
    settings: Settings
    modules: dict[str, dict[str, Tensor]]


def read(path: str | Path) -> Adapter:
    """Return the contents of an adapter's directory; raise ModelError if they are damaged or incomplete."""
    path = Path(path).expanduser()
    if not path.is_dir():
        raise ModelError(
            f"no adapter at {path}: expected a directory with {CONFIG} and {WEIGHTS}",
            "Give the directory that PEFT's save_pretrained wrote.",
        )
    require_files(path)
    chosen = settings(read_json(path / CONFIG), path / CONFIG)
    require_safetensors(path)
    if not (path / WEIGHTS).is_file():
        raise ModelError(f"{path} has no {WEIGHTS}", _COPY)
    with foreign(ModelError, f"{path / WEIGHTS} cannot be read", _COPY):
        stored = load_file(path / WEIGHTS)
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _unpacked(stored, path).items():
        module, part = _placed(name, path)
        if part in modules.setdefault(module, {}):
            raise ModelError(f"{path} contains {part} of {module} twice", _COPY)
        modules[module][part] = tensor
    adapter = Adapter(path, chosen, modules)
    _require_whole(adapter)
    return adapter


def write(
    path: str | Path, tensors: dict[str, Tensor], config: dict[str, Any], *, int8: bool = False
) -> Path:
    """Write an adapter's directory, read it back as a check, and return its path.

    Args:
        tensors: tensors by PEFT's names, with or without the prefix `base_model.model.`:
            `model.layers.0.self_attn.q_proj.lora_A.weight` (r, in) and `….lora_B.weight` (out, r),
            complete tensors such as `model.norm.weight`, and
            `model.embed_tokens.token_adapter.trainable_tokens_delta` (n, d), the new embedding rows of the
            token ids in `trainable_token_indices`.
        config: fields of adapter_config.json, at least r and lora_alpha.
        int8: store A and B as int8 with one scale per rank component; other tensors are stored as they
            are.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        key = _PREFIX + name.removeprefix(_PREFIX)
        if int8 and key.endswith((".lora_A.weight", ".lora_B.weight")):
            integers, scale = quantised(tensor.float(), across=1 if ".lora_A." in key else 0)
            stored[key], stored[key + SCALE] = integers, scale
        else:
            stored[key] = tensor.clone()  # safetensors refuses tensors that share memory
    modules = {_placed(name, path)[0] for name in stored if not name.endswith(SCALE)}
    lora = {n.rpartition(".lora_A.")[0].rpartition(".")[2] for n in stored if ".lora_A." in n}
    saved = {  # by their full names: PEFT applies "norm" to every name that ends in "norm"
        name
        for name in modules
        if any(f"{_PREFIX}{name}.{end}" in stored for end in ("weight", "bias"))
    }
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "bias": "none",
        "target_modules": sorted(lora),
        "modules_to_save": sorted(saved) or None,
        **config,
    }
    if not {"r", "lora_alpha"} <= set(config):
        raise UsageError("the config of an adapter has no r or no lora_alpha", "Give both.")
    (path / CONFIG).write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")
    save_file(stored, path / WEIGHTS, metadata={"format": "pt"})
    read(path)
    return path


def quantised(
    tensor: Float[Tensor, "rows columns"], across: int
) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, "rows_or_1 columns_or_1"]]:
    """Quantise to integers from −127 to 127, with one scale per row (`across=1`) or column (`across=0`)."""
    largest = tensor.abs().amax(dim=across, keepdim=True)
    scale = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (tensor / scale).round().clamp(-127, 127).to(torch.int8), scale


def _unpacked(stored: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return all tensors as floats: int8 tensors times their scale, float tensors unchanged."""
    result = {}
    for name, tensor in stored.items():
        base = name.removesuffix(SCALE)
        if base != name and base in stored and stored[base].dtype is torch.int8:
            continue  # used together with its tensor
        if tensor.dtype is torch.int8:
            scale = stored.get(name + SCALE)
            if scale is None or not _fits(scale, tensor):
                raise ModelError(
                    f"{path}: {name} is int8, and {name + SCALE} is missing or does not fit", _COPY
                )
            tensor = tensor.float() * scale.float()
        elif not tensor.is_floating_point():
            raise ModelError(f"{path}: {name} is {tensor.dtype}, expected floats or int8", _COPY)
        if not bool(tensor.isfinite().all()):
            raise ModelError(f"{path}: {name} contains NaN or infinity", _COPY)
        result[name] = tensor
    return result


def _fits(scale: Tensor, tensor: Tensor) -> bool:
    """Tell whether the scale has the size of the tensor, but size 1 in one dimension."""
    lines = [(*tensor.shape[:d], 1, *tensor.shape[d + 1 :]) for d in range(tensor.ndim)]
    return scale.is_floating_point() and scale.shape in lines


def _placed(name: str, path: Path) -> tuple[str, str]:
    """Return the module and the part, such as "A", that a tensor's name in the file denotes."""
    for ending, part in _PARTS.items():
        if name.endswith(ending) and ".lora_" not in (module := name.removesuffix(ending)):
            return module.removeprefix(_PREFIX), part
    raise ModelError(
        f"{path}: tensor {name:.200} is not part of a LoRA",
        "Merge the adapter with PEFT and load the result.",
    )


def _require_whole(adapter: Adapter) -> None:
    """Refuse an adapter that lacks A or B of a LoRA pair, or a tensor that its config names."""
    for module, parts in adapter.modules.items():
        for half, other in _TOGETHER:
            if (half in parts) != (other in parts):
                present, missing = (half, other) if half in parts else (other, half)
                raise ModelError(f"{adapter.path}: {module} has {present} but no {missing}", _COPY)
    for name in adapter.settings.targets:
        if not any(ends(module, name) for module in adapter.modules):
            raise ModelError(
                f"{adapter.path}: {CONFIG} names {name!r:.80}, which has no tensor",
                f"{_COPY[:-1]}, or remove the name from {CONFIG}.",
            )
