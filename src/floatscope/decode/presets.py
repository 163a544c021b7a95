"""Samplers by name: a model's usual one, all with their published settings, one as a person types it.

No sampler is imported until one is made: a report knows their names without torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..models.select import value_of

if TYPE_CHECKING:
    from ..models.model import Model

CALIBRATED = "position-calibrated"


def default_name(model: "Model") -> str:
    return "confidence" if model.is_diffusion else "autoregressive"


def default_sampler(model: "Model") -> Any:
    """What is used where no sampler is given."""
    return sampler_of(default_name(model), {})


def sampler_of(name: str, common: Mapping[str, Any], options: Iterable[str] = ()) -> Any:
    """A sampler with the `common` settings it has a field for; `options` are "field=value"."""
    from .samplers import SAMPLERS

    cls = SAMPLERS.named(name)
    known = {f.name for f in fields(cls)}
    unknown = [key for key, value in common.items() if key not in known and value]
    if unknown:
        raise UsageError(f"{name} takes no {unknown[0]}", "Leave it out.")
    settings = {key: value for key, value in common.items() if key in known}
    for text in options:
        key, _, value = text.partition("=")
        if key not in known or not value:
            raise UsageError(
                f"--set {text}: {name} has no such field", f"It has: {', '.join(sorted(known))}."
            )
        settings[key] = value_of(value)
    return cls(**settings)


def published(length: int, steps: int | None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Sampler and settings of each preset: the published ones, and confidence in blocks."""
    fixed: dict[str, Any] = {"length": length, "steps": steps}
    free: dict[str, Any] = {"length": length}  # takes as many steps as it needs
    presets = {name: (name, fixed) for name in ("confidence", "entropy", "margin", "random")}
    presets |= {
        CALIBRATED: (CALIBRATED, fixed),
        "threshold": ("threshold", free),
        "factor": ("threshold", free | {"factor": 1.0}),
        "entropy-bound": ("entropy-bound", free),
        "remask": ("remask", free | {"steps": 2 * (steps or length)}),
    }
    for parts in (4, 2, 5):
        if length % parts == 0 and (steps or length) >= parts:
            blocks = fixed | {"block_length": length // parts}
            return presets | {"semi-autoregressive": ("confidence", blocks)}
    return presets


def all_samplers(
    length: int, steps: int | None = None, frequencies: str | Path | None = None
) -> dict[str, Any]:
    """Every denoising sampler with its published settings."""
    more = {CALIBRATED: {"frequencies": frequencies}}
    return {
        name: sampler_of(sampler, settings | more.get(name, {}))
        for name, (sampler, settings) in published(length, steps).items()
    }
