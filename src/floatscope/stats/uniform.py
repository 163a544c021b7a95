"""The null of attention mass: the mass of each key under uniform attention over the visible keys."""

from typing import TypedDict, Unpack

import numpy as np
from jaxtyping import Float, Int

from ..sequences.direction import Direction


class Rule(TypedDict, total=False):
    """Options of `last_visible` that limit the visible keys in addition to the direction."""

    offset: int
    current: int | None
    reach: int | None


def last_visible(
    direction: Direction,
    block: int | None,
    size: int,
    *,
    offset: int = 0,
    current: int | None = None,
    reach: int | None = None,
) -> Int[np.ndarray, " s"]:
    """Return the last key that each row sees.

    Args:
        offset: number of positions by which the first block is shorter.
        current: first position of the block being decided, for a model whose finished context is causal.
        reach: number of keys that a row of a local layer sees to either side; None: no limit.
    """
    rows = np.arange(size)
    if direction is Direction.CAUSAL:
        return rows
    if direction is Direction.BIDIRECTIONAL:
        return np.full(size, size - 1) if reach is None else np.minimum(rows + reach, size - 1)
    assert block is not None
    last = np.minimum(((rows + offset) // block + 1) * block - offset - 1, size - 1)
    if direction is Direction.ACTIVE_BLOCK:
        last = np.where(rows >= (size if current is None else current), last, rows)
    return last


def first_visible(size: int, reach: int | None) -> Int[np.ndarray, " s"]:
    """Return the first key that each row sees: 0, except in a local layer."""
    return np.zeros(size, int) if reach is None else np.maximum(np.arange(size) - reach, 0)


def visible_queries(
    direction: Direction, block: int | None, size: int, **rule: Unpack[Rule]
) -> Int[np.ndarray, " s"]:
    """Return the number of queries that see each key."""
    last = last_visible(direction, block, size, **rule)
    return _rows_end(size, rule.get("reach")) - np.searchsorted(last, np.arange(size))


def mass(
    direction: Direction, block: int | None, size: int, **rule: Unpack[Rule]
) -> Float[np.ndarray, " s"]:
    """Return the mass of each key under uniform attention of every query; sums to 1.

    For S keys, the mass is 1/S for bidirectional attention, and (1/S)·Σ_{i≥j} 1/(i+1) for causal attention.
    In a causal model, position 0 therefore gets (1 + ½ + … + 1/S)/S by construction.
    """
    last, reach = last_visible(direction, block, size, **rule), rule.get("reach")
    # attention of each query to each visible key
    share = 1.0 / (last - first_visible(size, reach) + 1)
    suffix = np.concatenate([np.cumsum(share[::-1])[::-1], [0.0]])
    # first viewer, and past the last one
    viewers = np.searchsorted(last, np.arange(size)), _rows_end(size, reach)
    return np.asarray((suffix[viewers[0]] - suffix[viewers[1]]) / size)


def _rows_end(size: int, reach: int | None) -> Int[np.ndarray, " s"]:
    """Return, for each key, the index after the last row that sees it."""
    return np.searchsorted(first_visible(size, reach), np.arange(size), side="right")
