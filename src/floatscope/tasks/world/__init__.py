"""The synthetic world: generated questions and passages, with the place of every fact in the text.

    world = World(seed=0)
    world.examples(LEVELS["nine"], n=100, seed=1)              # unseen people, with passages
    [e.closed_book() for e in world.examples(LEVELS["one"], 100, known=True)]

The generator is deterministic and needs only Python's standard library. It contains no tokenizer and no
scores. It imports no module of the rest of the package, so that training code can use this folder alone.
"""

from .generate import Entity
from .layout import LEAD, answer_part, passage_parts, prompt_parts, question_parts
from .lexicon import split_of
from .people import World
from .types import LEVELS, RANGES, Context, Example, Fact, Level, Passage, Question
