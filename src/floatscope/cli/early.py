"""Check the inputs of `trace` and `evaluate` before a model is loaded.

The checks and their messages are those of the library. A model that is not in a local directory (a model on a
hub or in a GGUF file) is checked when it is loaded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..models.spec import ModelSpec
from ..sequences.vocabulary import ModelFacts

if TYPE_CHECKING:
    from ..decode import AnySampler
    from ..interventions import Intervention
    from ..tasks import Condition, Record, Template


def spec_of(model: str, elsewhere: bool = False) -> ModelSpec:
    """Parse a model's spec; raise an error if the model does not exist or its family is unknown.

    If `elsewhere` is set, the model may be a directory on another machine.
    """
    from ..models.registry import require_loadable

    spec = ModelSpec.parse(model)
    require_loadable(spec, elsewhere=elsewhere)
    return spec


def require_interventions(texts: Iterable[str]) -> None:
    """Raise UsageError for the name of an unknown intervention, without importing interventions."""
    from ..registry import INTERVENTIONS

    for text in texts:
        for part in text.split(" + "):
            INTERVENTIONS.require(re.split("[,;:]", part.strip())[0])


def require_sampler(text: str, common: Mapping[str, Any]) -> None:
    """Raise UsageError for a sampler with an unknown name, unknown fields, or invalid values.

    A text that begins with a setting instead of a name is checked later, because the settings then apply to
    the model's default sampler.
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
    """Raise UsageError if a prompt leaves no room in the context for its answer.

    `added` is the number of tokens that an intervention adds.
    """
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
    """Raise UsageError if one of the longest records leaves no room in the context for its answer."""
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
