"""The synthetic world: questions over passages whose every span and every fact is known.

    world = World(seed=0)
    world.examples(LEVELS["nine"], n=100, seed=1)              # unseen people, with passages
    [e.closed_book() for e in world.examples(LEVELS["one"], 100, known=True)]

It is pure Python and deterministic. It holds no tokenizer and no scores, and needs nothing of the
package around it: training takes this folder alone.
"""

from .generate import Entity
from .layout import LEAD, answer_part, passage_parts, prompt_parts, question_parts
from .lexicon import split_of
from .people import World
from .types import LEVELS, RANGES, Context, Example, Fact, Level, Passage, Question
