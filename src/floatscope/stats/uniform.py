"""The null of every mass: what attention spread evenly over the visible keys would give."""

import numpy as np
from jaxtyping import Float, Int

from ..sequences.direction import Direction


def last_visible(
    direction: Direction,
    block: int | None,
    size: int,
    *,
    offset: int = 0,
    current: int | None = None,
) -> Int[np.ndarray, " s"]:
    """The last key that each row sees. `offset`: by how much the first block is shorter; `current`: the
    first position of the block being decided, of a model whose finished context is causal."""
    rows = np.arange(size)
    if direction is Direction.CAUSAL:
        return rows
    if direction is Direction.BIDIRECTIONAL:
        return np.full(size, size - 1)
    assert block is not None
    last = np.minimum(((rows + offset) // block + 1) * block - offset - 1, size - 1)
    if direction is Direction.ACTIVE_BLOCK:
        last = np.where(rows >= (size if current is None else current), last, rows)
    return last


def visible_queries(
    direction: Direction,
    block: int | None,
    size: int,
    *,
    offset: int = 0,
    current: int | None = None,
) -> Int[np.ndarray, " s"]:
    """|V_j|: how many queries see each key."""
    last = last_visible(direction, block, size, offset=offset, current=current)
    return size - np.searchsorted(last, np.arange(size))


def mass(
    direction: Direction,
    block: int | None,
    size: int,
    *,
    offset: int = 0,
    current: int | None = None,
) -> Float[np.ndarray, " s"]:
    """Mass of each key if every query spread its attention evenly; sums to 1.

    Bidirectional: 1/S. Causal: (1/S)·Σ_{i≥j} 1/(i+1), so that position 0 gets H_S/S for nothing.
    """
    last = last_visible(direction, block, size, offset=offset, current=current)
    share = 1.0 / (last + 1)  # of each query, to each of its keys
    suffix = np.concatenate([np.cumsum(share[::-1])[::-1], [0.0]])
    return suffix[np.searchsorted(last, np.arange(size))] / size
