"""Convert a request to a sampler, a prompt and edits that fit the model.

A request that the model cannot run raises an error in this module, before a forward runs.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..decode import SAMPLERS
from ..decode.blocks import max_steps
from ..decode.loop import AnySampler
from ..decode.presets import default_name
from ..decode.state import check_fits
from ..errors import UsageError
from ..instrument import Model
from ..trace import readable
from .limits import LIMITS
from .prompts import prompt_of
from .touches import AppliedEdit, together, touched

_GROUPS = 3  # of queries: masked, revealed, prompt

KINDS: dict[Any, tuple[str, bool]] = {  # what a page can offer a box for: kind, may be nothing
    bool: ("bool", False),
    int: ("int", False),
    int | None: ("int", True),
    float: ("float", False),
    float | None: ("float", True),
    str: ("text", False),
}
_WORDS = {"int": "whole number", "float": "number", "bool": "true or false", "text": "word"}
LENGTH = 16  # offered first: a page shows it well, and the pair answers in fewer


def sampler_of(model: Model, message: Mapping[str, Any] | None) -> AnySampler:
    """Return the requested sampler (None: the default), checked against model and page limits."""
    if message is None:
        message = {"name": default_name(model), "settings": {"length": LENGTH}}
    name = message["name"]
    cls = SAMPLERS.named(name)
    field_types: dict[str, Any] = {f.name: f.type for f in fields(cls)}
    settings = {}
    for key, value in message.get("settings", {}).items():
        kind, _ = KINDS.get(field_types.get(key), ("", False))
        if not kind:
            setting_names = [n for n, t in field_types.items() if t in KINDS]
            raise UsageError(
                f"{name} has no setting {key!r:.60}", f"It has: {', '.join(setting_names)}."
            )
        try:
            settings[key] = TypeAdapter(field_types[key]).validate_python(value, strict=True)
        except ValidationError:
            remedy = f"Give a {_WORDS[kind]}."
            raise UsageError(f"{name}: {key} = {value!r:.60}", remedy) from None
    sampler: AnySampler = cls(**settings)
    sampler.check(model)
    for limit_name, number in (("length", sampler.length), ("steps", max_steps(model, sampler))):
        if number > LIMITS[limit_name]:
            raise UsageError(
                f"{name}: {number} for {limit_name}, and the page shows at most {LIMITS[limit_name]}",
                "Choose fewer, or use floatscope trace.",
            )
    return sampler


class ParsedRun:
    """The prompt, sampler and edits of a requested run, converted to the library's types."""

    def __init__(self, model: Model, job: Mapping[str, Any]) -> None:
        self.prompt = prompt_of(job["prompt"])
        self.encoded = model.encode(self.prompt)
        self.sampler = sampler_of(model, job.get("sampler"))
        check_fits(
            *(model, len(self.encoded.ids), self.sampler.length),
            remedy="Use fewer or shorter passages, or a shorter length.",
        )
        total = max_steps(model, self.sampler)
        _check_size(model, total, len(self.encoded.ids) + self.sampler.length)
        for touch in job.get("touches", ()):
            if touch["step"] >= total:
                raise UsageError(
                    f"a touch at step {touch['step']} of {total}",
                    f"Choose one from 0 to {total - 1}.",
                )
        self.touched: list[AppliedEdit] = touched(
            *(model, self.encoded, job.get("touches", ()), self.sampler.length)
        )
        self.intervention = together(self.touched)

    def under(self, model: Model) -> Any:
        """Return a context manager within which the run's edits are active."""
        return nullcontext() if self.intervention is None else self.intervention(model)


def _check_size(model: Model, steps: int, size: int) -> None:
    """Raise UsageError if the run's trace, which is held in memory until it is saved, would be too large."""
    takes = 4 * steps * _GROUPS * model.n_layers * model.n_heads * size
    if takes > LIMITS["trace_bytes"]:
        raise UsageError(
            f"{steps} steps of {size} positions take {readable(takes)} in {model.name}, and a run of the "
            f"page {readable(LIMITS['trace_bytes'])} at most",
            "Choose fewer steps or tokens, or shorter passages; or use trace(..., to=PATH), which writes "
            "each step as it is done.",
        )
