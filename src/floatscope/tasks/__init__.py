"""Tasks: questions, passages, prompts with spans, scores; the synthetic world.

Files become records, conditions change a record's passages, templates turn it into a prompt,
`evaluate` asks a model and scores what it says. Names load when first used: the world alone needs
nothing but Python.
"""

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .answers import SCORES, Answers, evaluate
    from .ask import prompt_of
    from .bad import Bad
    from .conditions import Condition, gold_sweep, noise_sweep, passage_counts
    from .pool import Pool
    from .questions import world_records
    from .readers import Records, read_records
    from .record import Passage, Record, from_world
    from .scores import contains, exact_match, f1, normalise, score
    from .templates import PlainTemplate, Template, WorldTemplate

_WHERE = {
    "answers": ("SCORES", "Answers", "evaluate"),
    "ask": ("prompt_of",),
    "conditions": ("Condition", "gold_sweep", "noise_sweep", "passage_counts"),
    "bad": ("Bad",),
    "pool": ("Pool",),
    "questions": ("world_records",),
    "readers": ("Records", "read_records"),
    "record": ("Passage", "Record", "from_world"),
    "scores": ("contains", "exact_match", "f1", "normalise", "score"),
    "templates": ("PlainTemplate", "Template", "WorldTemplate"),
}
__getattr__, __dir__ = lazily(__name__, _WHERE)
__all__ = [
    "SCORES",
    "Answers",
    "Bad",
    "Condition",
    "Passage",
    "PlainTemplate",
    "Pool",
    "Record",
    "Records",
    "Template",
    "WorldTemplate",
    "contains",
    "evaluate",
    "exact_match",
    "f1",
    "from_world",
    "gold_sweep",
    "noise_sweep",
    "normalise",
    "passage_counts",
    "prompt_of",
    "read_records",
    "score",
    "world_records",
]
