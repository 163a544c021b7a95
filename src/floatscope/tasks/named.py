"""Tasks that need no file, by name: the levels of the synthetic world, and the tasks with long answers.

    world:nine    known:nine    long:continuation

`data` of a run or of `floatscope evaluate` is such a name or a file. This module also tells which kind of
text a task asks for, before any of its records is read.
"""

from ..untrusted import exists
from .long_questions import LONG, asked_for, long_records
from .record import Asks, Record
from .world_questions import WORLD, world_records

KNOWN = "known:"  # a level of the world, about people that the pair was trained on
MANY = 200  # default number of questions of the world


def is_named(data: str) -> bool:
    """Return whether `data` is the name of a task, and not of an existing file.

    Args:
        data (str): Such as "world:nine", "known:nine" or "long:answer". An existing file of that name takes
            precedence.
    """
    return data.startswith((WORLD, KNOWN, LONG)) and not exists(data)


def named_records(data: str, n: int | None, seed: int = 0) -> tuple[Record, ...]:
    """Return records of a task by its name.

    Args:
        data (str): The name, such as "world:nine", "known:nine" or "long:answer".
        n (int): Number of records. None: all of a long task, 200 of the world.
        seed (int): Seed of the questions or of their order; 0 by default.

    Example:
        `fs.tasks.named_records("world:nine", 20)`
    """
    if data.startswith(LONG):
        return long_records(data, n, seed)
    is_known = data.startswith(KNOWN)
    level = data.partition(":")[2]
    return world_records(WORLD + level, MANY if n is None else n, seed=seed, known=is_known)


def asks(data: str) -> Asks:
    """Return the kind of text that the records of `data` ask for; `Asks.WORDS` for a file."""
    return (asked_for(data) if is_named(data) else None) or Asks.WORDS
