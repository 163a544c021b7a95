"""Tasks that need no file, by the name a person types: the world's levels, and the long ones.

    world:nine    known:nine    long:continuation

`data` of a run or of `floatscope evaluate` is such a name or a file. What a name says before anything is
read (does it have right answers, or passages?) is here too, for plans.
"""

from ..untrusted import exists
from .long_questions import LONG, asked_for, long_records
from .record import Asks, Record
from .world_questions import WORLD, world_records

KNOWN = "known:"  # a level of the world, about people that the pair was trained on
MANY = 200  # questions of the world, where nobody says how many


def is_named(data: str) -> bool:
    """Whether it is a task's name; a file that happens to be called so comes first."""
    return data.startswith((WORLD, KNOWN, LONG)) and not exists(data)


def named_records(data: str, n: int | None, seed: int = 0) -> tuple[Record, ...]:
    """`n` records of a task by its name; without a number, all of a long one's and 200 of the world's."""
    if data.startswith(LONG):
        return long_records(data, n, seed)
    known = data.startswith(KNOWN)
    level = data.partition(":")[2]
    return world_records(WORLD + level, MANY if n is None else n, seed=seed, known=known)


def asks(data: str) -> Asks:
    """What a task's records ask for; a file's ask for a few words."""
    return (asked_for(data) if is_named(data) else None) or Asks.WORDS
