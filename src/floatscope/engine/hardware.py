"""Processor cores of this process, and which GPU each local worker sees.

A worker sees one GPU by CUDA_VISIBLE_DEVICES, as in Ray. Nothing here looks at a GPU: the caller says how
many there are.
"""

import os
from collections.abc import Sequence

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def usable_cores() -> int:
    """Count the cores that the scheduler gives this process; all of the machine's where it does not say."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpu_names(count: int) -> tuple[str, ...]:
    """Name the first `count` GPUs as CUDA does: entries of CUDA_VISIBLE_DEVICES, or else numbers."""
    visible = os.environ.get(VISIBLE_GPUS)
    names = [str(number) for number in range(count)] if visible is None else visible.split(",")
    return tuple(name.strip() for name in names[:count])


def least_used(gpus: Sequence[str], taken: Sequence[str | None]) -> str | None:
    """Choose the GPU that the fewest workers have; None without GPUs."""
    return min(gpus, key=taken.count, default=None)
