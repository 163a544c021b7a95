"""Run a plan of shards on one or many machines, and store the results in a directory.

An interrupted run is resumed from its directory. The engine does not depend on models or measures: a plan
names the function that computes arrays.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .directory import Event, Run
    from .driver import Summary, execute
    from .plan import Output, Plan, Shard, Tick, Worker
    from .progress import Meter, RunProgress

lazily(__name__)
