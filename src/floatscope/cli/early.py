"""What `trace` and `evaluate` can refuse before they load a model: the cheapest first.

What is refused here is refused by the library, in its own words; a model that is not in a directory here
(on a hub, in a GGUF file) is left to the loading of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..models.spec import ModelSpec

if TYPE_CHECKING:
    from ..decode import AnySampler
    from ..interventions import Intervention
    from ..models.outline import Outline
    from ..tasks import Condition, Record, Template


def spec_of(model: str, given: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model as it was typed, with flags that say more of it; it is there, and its family is known."""
    from ..models.registry import require_family

    spec = ModelSpec.parse(model)
    names = {field.name for field in fields(ModelSpec)}
    said: dict[str, Any] = {
        key: str(value) if key == "adapter" else value
        for key, value in (given or {}).items()
        if key in names and value is not None
    }
    spec = replace(spec, **said)
    spec.require_there()
    if spec.family:
        require_family(spec.family)
    return spec


def require_sampler(name: str, common: Mapping[str, Any], options: Iterable[str]) -> None:
    """There is such a sampler, with such fields, whose values go together."""
    from ..decode.presets import sampler_of

    sampler_of(name, common, options).check_fields()


def require_texts(outline: "Outline", sampler: "AnySampler", prompts: Sequence[Any]) -> None:
    """Every prompt leaves room for what is decoded: the last is not refused after the first was traced."""
    from ..decode.state import check_fits
    from ..sequences.prompt import encode

    sampler.check(outline)
    for number, prompt in enumerate(prompts, 1):
        where = f"prompt {number} of {len(prompts)}: " if len(prompts) > 1 else ""
        check_fits(outline, len(encode(outline, prompt).ids), sampler.length, where=where)


def require_records(
    outline: "Outline",
    records: "Sequence[Record]",
    sampler: "AnySampler",
    condition: "Condition",
    template: "Template | None",
    intervention: "Intervention | None",
) -> None:
    """The longest records leave room for their answers."""
    from ..tasks.asking import budget, default_template
    from ..tasks.fitting import fitting, longest
    from ..tasks.pool import Pool

    chosen, pool = budget(sampler, condition), Pool(records)
    chosen.check(outline)
    for record in longest(records):
        fitting(
            outline,
            record,
            condition=condition,
            template=template or default_template(records),
            pool=pool,
            length=chosen.length,
            added=0 if intervention is None else intervention.adds,
        )
