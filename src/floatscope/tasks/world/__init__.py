"""The synthetic world: questions over passages in which every fact and its place in the text is known.

    world = World(seed=0)
    world.examples(LEVELS["nine"], n=100, seed=1)              # unseen people, with passages
    [e.closed_book() for e in world.examples(LEVELS["one"], 100, known=True)]

It is pure Python and deterministic. It has no tokenizer and no scores, and imports nothing from the rest
of the package, because training uses only this folder.
"""

from .generate import Entity
from .layout import LEAD, answer_part, passage_parts, prompt_parts, question_parts
from .lexicon import split_of
from .people import World
from .types import LEVELS, RANGES, Context, Example, Fact, Level, Passage, Question
