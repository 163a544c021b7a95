"""Which GPU a local worker sees: one each, in turn, by CUDA_VISIBLE_DEVICES, as Ray does for its own.

Names alone: how many GPUs there are is said by whoever knows, and no GPU is asked here.
"""

import os
from collections.abc import Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"


def names(count: int) -> tuple[str, ...]:
    """What CUDA calls the GPUs that this process sees: a scheduler's words for them, or numbers."""
    given = os.environ.get(VISIBLE)
    words = [str(number) for number in range(count)] if given is None else given.split(",")
    return tuple(word.strip() for word in words[:count])


def least_used(gpus: Sequence[str], taken: Sequence[str | None]) -> str | None:
    """For a further worker beside those that have these; the place of one that died is free again."""
    return min(gpus, key=taken.count, default=None)
