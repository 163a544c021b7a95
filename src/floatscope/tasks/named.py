"""Return the records of tasks that need no file: levels of the synthetic world, tasks with long answers.

    world:nine    known:nine    long:continuation

The `data` of a run or of `floatscope evaluate` is the name of such a task or the path of a file. This module
also returns the kind of text that a task asks for, before any record of the task is read.
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
        data (str): A name, such as "world:nine", "known:nine" or "long:answer", or a path. If a file has this
            name, `data` is the path of the file.
    """
    return data.startswith((WORLD, KNOWN, LONG)) and not exists(data)


def named_records(data: str, n: int | None, seed: int = 0) -> tuple[Record, ...]:
    """Return records of a task by its name.

    Args:
        data (str): The name, such as "world:nine", "known:nine" or "long:answer".
        n (int): Number of records. None returns all records of a task with long answers, or 200 records of
            the synthetic world.
        seed (int): Seed that draws the questions, or the order of the records; 0 by default.

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
