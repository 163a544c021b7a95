"""The run engine: run a plan of shards, locally or on many machines, into a directory that can resume.

It knows nothing about models or measures: a plan names a function, and the function computes arrays.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .directory import Event, Run
    from .driver import Summary, execute
    from .plan import Output, Plan, Shard, Tick, Worker
    from .progress import Meter, RunProgress

lazily(__name__)
