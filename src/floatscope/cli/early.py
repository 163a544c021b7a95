"""What `trace` and `evaluate` can refuse before they load a model: the cheapest first.

What is refused here is refused by the library, in its own words; a model that is not in a directory here
(on a hub, in a GGUF file) is left to the loading of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..models.spec import ModelSpec
from ..sequences.vocabulary import ModelFacts

if TYPE_CHECKING:
    from ..decode import AnySampler
    from ..interventions import Intervention
    from ..tasks import Condition, Record, Template


def spec_of(model: str, elsewhere: bool = False) -> ModelSpec:
    """Read the model as it was typed, and refuse one that is not there or of no known family.

    `elsewhere`: it may be a directory of another machine.
    """
    from ..models.registry import require_loadable

    spec = ModelSpec.parse(model)
    require_loadable(spec, elsewhere=elsewhere)
    return spec


def require_interventions(texts: Iterable[str]) -> None:
    """Refuse a name of no intervention, before what they need is imported."""
    from ..registry import INTERVENTIONS

    for text in texts:
        for part in text.split(" + "):
            INTERVENTIONS.require(part.strip().partition(":")[0])


def require_sampler(text: str, common: Mapping[str, Any]) -> None:
    """Refuse a sampler that is not known, has no such field, or whose values do not go together.

    A text that begins with a setting is left until the model is known: it is for its usual sampler.
    """
    from ..decode.presets import sampler_of
    from ..registry import SAMPLERS

    name = text.partition(",")[0].strip()
    if "=" not in name:
        SAMPLERS.require(name)
        sampler_of(text, common).check_fields()


def require_texts(
    outline: ModelFacts, sampler: "AnySampler", prompts: Sequence[Any], added: int = 0
) -> None:
    """Every prompt leaves room for what is decoded: the last is not refused after the first was traced."""
    from ..decode.state import check_fits
    from ..sequences.prompt import encode

    sampler.check(outline)
    for number, prompt in enumerate(prompts, 1):
        where = f"prompt {number} of {len(prompts)}: " if len(prompts) > 1 else ""
        check_fits(outline, len(encode(outline, prompt).ids) + added, sampler.length, where=where)


def require_records(
    outline: ModelFacts,
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
