"""The processor cores of this process, and the GPU of each local worker.

A worker sees one GPU through CUDA_VISIBLE_DEVICES, as in Ray. This module does not query GPUs: the caller
passes their number.
"""

import os
from collections.abc import Sequence

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def usable_cores() -> int:
    """Return the number of cores available to this process, or of the machine if that is unknown."""
    affinity = getattr(os, "sched_getaffinity", None)  # available on Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpu_names(count: int) -> tuple[str, ...]:
    """Return CUDA's names of the first `count` GPUs: entries of CUDA_VISIBLE_DEVICES, or else numbers."""
    visible = os.environ.get(VISIBLE_GPUS)
    names = [str(number) for number in range(count)] if visible is None else visible.split(",")
    return tuple(name.strip() for name in names[:count])


def least_used(gpus: Sequence[str], assigned: Sequence[str | None]) -> str | None:
    """Return the GPU with the fewest workers; None without GPUs."""
    return min(gpus, key=assigned.count, default=None)
