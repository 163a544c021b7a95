"""Apply a task's generation settings to a sampler and to the text: length, temperature and stop strings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..decode import SAMPLERS, AnySampler, Autoregressive
from ..decode.presets import default_name, sampler_of
from ..errors import UsageError
from ..models import Model

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_ONLY_WHEN_WARM = ("top_p", "top_k", "min_p")  # without effect in greedy decoding


@dataclass(frozen=True)
class GenerationRequest:
    """The settings in a task's `generation_kwargs`.

    If the length or the temperature is None, the sampler keeps its own value.
    """

    until: tuple[str, ...] = ()
    length: int | None = None
    temperature: float | None = None  # None: the sampler's own

    @classmethod
    def from_kwargs(cls, settings: Mapping[str, Any]) -> "GenerationRequest":
        """Parse `generation_kwargs` as the harness does: a temperature above 0 implies `do_sample`."""
        remaining = dict(settings)
        until = remaining.pop("until", None) or ()
        lengths = [value for name in _LENGTHS if (value := remaining.pop(name, None)) is not None]
        temperature = float(remaining.pop("temperature", None) or 0.0)
        if remaining.pop("do_sample", None) is False:
            temperature = 0.0
        refused = [name for name in remaining if temperature or name not in _ONLY_WHEN_WARM]
        if refused:
            raise UsageError(
                f"the task asks for {refused[0]} = {remaining[refused[0]]!r} in generation",
                "Floatscope's samplers have no such option: take it out of generation_kwargs.",
            )
        return cls(
            until=(until,) if isinstance(until, str) else tuple(until),
            length=int(lengths[0]) if lengths else None,
            temperature=temperature or None,
        )

    def sampler(self, base: AnySampler, occurrence: int = 0) -> AnySampler:
        """Return `base` with these settings.

        If the resulting sampler has a temperature above 0, `occurrence` is added to its seed, so that repeats
        of a request get different samples.
        """
        sampler = base if self.length is None else resized(base, self.length)
        if self.temperature is not None:
            sampler = replace(sampler, temperature=self.temperature)
        if sampler.temperature:
            sampler = replace(sampler, seed=sampler.seed + occurrence)
        return sampler

    def text(self, model: Model, ids: Sequence[int]) -> str:
        """Return the text of an answer's token ids, up to the first stop string."""
        tokens = [i for i in ids[: self.length] if i != model.mask_id]
        text = model.text(tokens)
        ends = [end for stop in self.until if stop and (end := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


def resized(sampler: AnySampler, length: int) -> AnySampler:
    """Return the sampler with another length, in whole blocks, at the same number of tokens per step."""
    if isinstance(sampler, Autoregressive):
        return replace(sampler, length=length)
    block = sampler.block_length
    if block is not None:
        block = min(block, length)
        length = -(-length // block) * block
    steps = sampler.steps
    if steps is not None:
        fewest = 1 if block is None else length // block
        steps = max(round(steps * length / sampler.length), fewest)
    return replace(sampler, length=length, steps=steps, block_length=block)


def sampler_from(
    model: Model, name_or_sampler: Any, options: Mapping[str, Any], seed: int
) -> AnySampler:
    """Return a given sampler, or create one by name and fields; None selects the model's default."""
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(name_or_sampler, AnySampler):
        if options:
            raise UsageError(
                f"{', '.join(options)} given with a sampler", "Set them in the sampler."
            )
        return name_or_sampler
    name = name_or_sampler or default_name(model)
    if name in SAMPLERS:
        field_names = [field.name for field in fields(SAMPLERS[name])]
        for option in options:
            if option not in field_names:
                raise UsageError(f"{name} takes no {option}", f"It has: {', '.join(field_names)}.")
    sampler: AnySampler = sampler_of(name, {"seed": seed, **options}, [])
    return sampler
