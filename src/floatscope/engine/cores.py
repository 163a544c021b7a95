"""How many processor cores this process may use."""

import os


def usable_cores() -> int:
    """Count the cores that the scheduler gives this process; all of the machine's where it does not say."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1
