"""Support networks whose layers transformers' `device_map` has placed on several devices.

accelerate's hooks move a layer's input to the device of its weights. Tensors outside the layers (masks,
labels, requested rows) are moved by `moved`. Offloaded weights are refused, because the statistics read
the weights.
"""

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ModelError

SPREAD = "auto"  # device setting: spread the layers over all devices
T = TypeVar("T")


def devices(net: PreTrainedModel) -> list[torch.device]:
    """List the devices of the network's parameters, in order of first use."""
    return list(dict.fromkeys(parameter.device for parameter in net.parameters()))


def require_here(net: PreTrainedModel, name: str) -> None:
    """Raise ModelError if weights of the network are offloaded to disk or, beside a GPU, to the CPU."""
    places = set(map(str, getattr(net, "hf_device_map", {}).values()))
    gpu = any(device.type != "cpu" for device in devices(net))
    offloaded = "disk" in places or (gpu and "cpu" in places)
    if offloaded or any(parameter.is_meta for parameter in net.parameters()):
        raise elsewhere(name)


def elsewhere(name: str) -> ModelError:
    """Return the error for weights that do not fit on the available devices."""
    return ModelError(
        f"{name}: some of its weights are offloaded, and statistics need them on a device",
        "Use a narrower dtype, or more or larger GPUs.",
    )


def moved(value: T, device: torch.device) -> T:
    """Return a tensor, tuple or dataclass with all its tensors on the device; other values unchanged."""
    if isinstance(value, Tensor):
        return value.to(device)  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(moved(member, device) for member in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[str, Any] = {
            field.name: moved(getattr(value, field.name), device)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    return value
