"""The run engine: a plan of shards, run here or on many machines, into a directory that can resume.

It knows nothing of models or measures: a plan names a function, the function makes arrays.
"""

from .directory import Event, Run
from .execute import Summary, execute
from .plan import Output, Plan, Shard, Tick, Worker
from .progress import Meter, Progress

__all__ = [
    "Event",
    "Meter",
    "Output",
    "Plan",
    "Progress",
    "Run",
    "Shard",
    "Summary",
    "Tick",
    "Worker",
    "execute",
]
