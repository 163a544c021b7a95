"""Find samplers: a model's default sampler, the presets that are compared, and samplers typed as text.

A sampler's module is imported only when the sampler is created, so a report can list names without torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError, closest, did_you_mean
from ..models.select import value_of
from ..registry import SAMPLERS, dashed
from ..sequences.vocabulary import ModelFacts

CALIBRATED = "position-calibrated"
_FAST_BLOCK = 32  # Fast-dLLM decodes in blocks of this length


def default_name(model: ModelFacts) -> str:
    return "confidence" if model.is_diffusion else "autoregressive"


def named_for(model: ModelFacts, text: str | None) -> str:
    """Return a sampler as text with its name: the model's default sampler if `text` names none."""
    if not text:
        return default_name(model)
    return f"{default_name(model)},{text}" if "=" in text.partition(",")[0] else text


def default_sampler(model: ModelFacts) -> Any:
    """Make the sampler that a model uses if no sampler is given."""
    return sampler_of(default_name(model), {})


def choose_sampler(model: ModelFacts, sampler: Any = None) -> Any:
    """Return `sampler`, or the model's default if None; raise UsageError if it does not suit the model."""
    if sampler is None:
        sampler = default_sampler(model)
    if isinstance(sampler, type) or getattr(sampler, "registry", None) is not SAMPLERS:
        name = getattr(sampler, "__name__", str(sampler))
        cls = SAMPLERS[closest(dashed(name), SAMPLERS) or default_name(model)]
        raise UsageError(
            f"the sampler is {sampler!r:.80}: expected a sampler with its settings",
            f"Write fs.samplers.{cls.__name__}(length=32).",
        )
    sampler.check(model)
    return sampler


def sampler_of(name: str, common: Mapping[str, Any], options: Iterable[str] = ()) -> Any:
    """Make a sampler from a name, the `common` settings that it has, and "field=value" options.

    The name may carry settings: "confidence,temperature=0.7". A common setting of None keeps the
    sampler's default; for example, Dream's default temperature is 0.2.
    """
    name, *brought = (part.strip() for part in name.split(","))
    options = [*brought, *options]
    cls = SAMPLERS.named(name)
    types = {f.name: f.type for f in fields(cls)}
    unknown = [key for key, value in common.items() if key not in types and value]
    if unknown:
        raise UsageError(f"{name} has no setting {unknown[0]}", "Leave it out.")
    settings = {k: value for k, value in common.items() if k in types and value is not None}
    for text in options:
        key, _, value = text.partition("=")
        if key not in types or not value:
            raise UsageError(
                f"{text}: {name} has no such field",
                f"{did_you_mean(key, types)} It has: {', '.join(sorted(types))}.".strip(),
            )
        settings[key] = value_of(value)
        if not _is_a(settings[key], types[key]):
            raise UsageError(f"{name}: {key} = {value!r:.40}", f"Give {_KINDS[types[key]]}.")
    return cls(**settings)


# Descriptions of the types that a field may have.
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
}


def _is_a(value: Any, kind: Any) -> bool:
    """Tell whether a parsed value has a field's type; an int is accepted for a float, but a bool is not."""
    if kind not in _KINDS:
        return True
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (isinstance(value, int) and kind in (float, float | None))


class Preset(NamedTuple):
    """A sampler's name and settings. `source` is the publication with its arXiv number, or "ours"."""

    sampler: str
    settings: dict[str, Any]
    source: str


def presets(length: int, steps: int | None) -> dict[str, Preset]:
    """Return the presets that `compare_samplers` compares, by name; published samplers as published."""
    fixed: dict[str, Any] = {"length": length, "steps": steps}
    # for adaptive samplers, which take as many steps as they need
    free: dict[str, Any] = {"length": length}
    if length > _FAST_BLOCK and length % _FAST_BLOCK == 0:
        fast = free | {"block_length": _FAST_BLOCK}
    else:
        fast = free
    n_steps = 2 * (steps or length)  # samplers that remask tokens need additional steps
    chosen = {
        "confidence": Preset("confidence", fixed, "LLaDA, 2502.09992"),
        "entropy": Preset("entropy", fixed, "a baseline of 2508.13021"),
        "margin": Preset("margin", fixed, "a baseline of 2508.13021"),
        "random": Preset("random", fixed, "LLaDA, 2502.09992"),
        CALIBRATED: Preset(
            CALIBRATED, fixed, "PC-Sampler, 2508.13021; our setting without token frequencies"
        ),
        "threshold": Preset("threshold", fast, "Fast-dLLM, 2505.22618"),
        "factor": Preset("threshold", fast | {"factor": 1.0}, "Fast-dLLM, 2505.22618"),
        "entropy-bound": Preset("entropy-bound", free, "EB-Sampler, 2505.24857"),
        "dream": Preset("dream", fixed, "Dream, 2508.15487"),
        # With fewer than 20 steps its last phase, t ≤ 0.05, would be empty.
        "remdm": Preset("remdm", free | {"steps": max(20, n_steps)}, "ReMDM, 2503.00307"),
        "remask": Preset("remask", free | {"steps": n_steps}, "ours"),
    }
    for parts in (4, 2, 5):
        if length % parts == 0 and (steps or length) >= parts:
            blocks = fixed | {"block_length": length // parts}
            last = Preset("confidence", blocks, "LLaDA, 2502.09992; our block length")
            return chosen | {"semi-autoregressive": last}
    return chosen


def all_samplers(
    length: int, steps: int | None = None, frequencies: str | Path | None = None
) -> dict[str, Any]:
    """Return the denoising samplers of all presets, by name of the preset.

    Args:
        length: number of tokens to generate.
        steps: number of denoising steps for samplers with a fixed schedule; None is one step per token.
            Samplers that remask tokens get twice as many steps (ReMDM at least 20), and adaptive samplers
            take as many steps as they need.
        frequencies: .npy file with each token's share of a corpus, for PositionCalibrated; None counts
            all tokens as equally frequent.

    Returns:
        A dict from the preset's name to the sampler, in display order.
    """
    extra = {CALIBRATED: {"frequencies": frequencies}}
    return {
        name: sampler_of(preset.sampler, preset.settings | extra.get(name, {}))
        for name, preset in presets(length, steps).items()
    }
