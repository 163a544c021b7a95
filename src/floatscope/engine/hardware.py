"""Count the processor cores of this process, and assign GPUs to local workers.

A worker sees only its own GPU, because of the variable CUDA_VISIBLE_DEVICES. Ray does the same. The caller
gives the number of GPUs, because this module does not query GPUs.
"""

import os
from collections.abc import Sequence

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def usable_cores() -> int:
    """Return the number of cores available to this process; if unknown, the number of the machine's cores."""
    affinity = getattr(os, "sched_getaffinity", None)  # available on Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpu_names(count: int) -> tuple[str, ...]:
    """Return CUDA's names of the first `count` GPUs: from CUDA_VISIBLE_DEVICES or, if unset, numbers."""
    visible = os.environ.get(VISIBLE_GPUS)
    names = [str(number) for number in range(count)] if visible is None else visible.split(",")
    return tuple(name.strip() for name in names[:count])


def least_used(gpus: Sequence[str], assigned: Sequence[str | None]) -> str | None:
    """Return the GPU with the fewest workers; None without GPUs. `assigned` has the GPU of each worker."""
    return min(gpus, key=assigned.count, default=None)
