"""Tasks: questions, passages, prompts with spans, scores; the synthetic world.

Files become records, conditions change a record's passages, templates turn it into a prompt,
`evaluate` asks a model and scores what it says. Names load when first used: the world alone needs
nothing but Python.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .answers import SCORES, Answers, evaluate
    from .bad import Bad
    from .conditions import Condition, gold_sweep, noise_sweep, passage_counts
    from .long_questions import long_records
    from .named import is_named, named_records
    from .pool import Pool
    from .readers import Records, read_records
    from .record import Asks, Passage, Record, from_world
    from .samplers import compare_samplers
    from .scores import contains, exact_match, f1, normalise, score
    from .templates import PlainTemplate, Template, WorldTemplate
    from .world_prompts import prompt_of
    from .world_questions import world_records

lazily(__name__)
