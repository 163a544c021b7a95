"""Tasks: questions, passages, prompts with named parts, scores, and the synthetic world.

Readers turn files into records. Conditions change the passages of a record, and templates turn a record into
a prompt. `evaluate` asks a model the questions of the records and scores its answers. Each name is imported
when it is first used, so that `tasks.world` needs no other installed package.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .answers import SCORES, Answers, evaluate
    from .conditions import Condition, gold_sweep, noise_sweep, passage_counts
    from .invalid_record import InvalidRecord
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
