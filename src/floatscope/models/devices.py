"""A network whose layers lie on several devices, as transformers' `device_map` spreads them.

accelerate's hooks bring a layer's input to where its weights are. What stands beside the layers (masks,
labels, rows that are asked for) follows by `moved`. Weights that are elsewhere between forwards (offloaded)
are refused: the statistics read them.
"""

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ModelError

SPREAD = "auto"  # the device that means: over all there are
T = TypeVar("T")


def devices(net: PreTrainedModel) -> list[torch.device]:
    """Where its parameters are, in the order in which they first come."""
    return list(dict.fromkeys(parameter.device for parameter in net.parameters()))


def require_here(net: PreTrainedModel, name: str) -> None:
    """No weight is on a disk, or on a CPU to be fetched when its layer runs."""
    places = set(map(str, getattr(net, "hf_device_map", {}).values()))
    gpu = any(device.type != "cpu" for device in devices(net))
    offloaded = "disk" in places or (gpu and "cpu" in places)
    if offloaded or any(parameter.is_meta for parameter in net.parameters()):
        raise elsewhere(name)


def elsewhere(name: str) -> ModelError:
    """The error for weights that do not fit on the devices there are."""
    return ModelError(
        f"{name}: some of its weights are offloaded, and statistics need them in place",
        "Use a narrower dtype, or more or larger GPUs.",
    )


def moved(thing: T, device: torch.device) -> T:
    """The same with every tensor in it on the device: a dataclass, a tuple or a tensor."""
    if isinstance(thing, Tensor):
        return thing.to(device)  # type: ignore[return-value]
    if isinstance(thing, tuple):
        return tuple(moved(one, device) for one in thing)  # type: ignore[return-value]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields: dict[str, Any] = {
            field.name: moved(getattr(thing, field.name), device)
            for field in dataclasses.fields(thing)
        }
        return dataclasses.replace(thing, **fields)
    return thing
