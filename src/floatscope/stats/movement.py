"""Determine whether the key with most attention changes between states of a canvas.

A reference key is replaced only if another key receives at least FACTOR times the reference key's share.
Near-ties therefore do not count as a change, and a gradual change counts as much as a sudden change. Two
states are compared on the same rows, so that a change of the row set is not mistaken for a change of the key.

An example moves in a layer if its reference key changes at least once in this layer. A layer moves if more
than half of the examples move in it. The bounds of the number of moving layers come from simultaneous
intervals of the layers' shares of moving examples.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from .intervals.shares import share

FACTOR = 2.0  # ratio to the reference key's share from which on another key replaces it
UNTIL = "masked until"  # names of query groups: rows masked until state n
HALF = 0.5  # a layer moves if more than this share of the examples move in it


class Path(NamedTuple):
    """Reference key of each cell (layer, or layer and head) over the states of one example."""

    key: Int[np.ndarray, "states *cells"]  # key at each state
    share: Float[np.ndarray, "states *cells"]  # share of attention that the key receives
    # whether the key changed, between each state and the next
    changed: Bool[np.ndarray, "pairs *cells"]

    @property
    def moved(self) -> Bool[np.ndarray, "*cells"]:
        """Whether the reference key changed at least once, by cell."""
        return np.asarray(self.changed.any(0))


def follow(
    before: Float[np.ndarray, "pairs *cells keys"],
    after: Float[np.ndarray, "pairs *cells keys"],
    factor: float = FACTOR,
) -> Path:
    """Return the reference key at each state, its share of attention, and where it changes.

    Args:
        before, after: shares of attention by key at a state and at the next state, for each pair of
            states on the rows that are masked in both. Cells are layers, or layers and heads.
        factor: how many times the reference key's share another key must have to replace it.
    """
    reference = before[0].argmax(-1)
    keys, shares, changed = [reference], [_share_of(before[0], reference)], []
    for earlier, later in zip(before, after, strict=True):
        # Another key may be stronger on the rows of this pair: a new reference key, but not a movement.
        reference, _ = _replace(earlier, reference, factor)
        reference, moved = _replace(later, reference, factor)
        keys.append(reference)
        shares.append(_share_of(later, reference))
        changed.append(moved)
    return Path(np.stack(keys), np.stack(shares), np.stack(changed))


def _replace(
    shares: Float[np.ndarray, "*cells keys"], reference: Int[np.ndarray, "*cells"], factor: float
) -> tuple[Int[np.ndarray, "*cells"], Bool[np.ndarray, "*cells"]]:
    """Return the new reference key of each cell, and whether it differs from `reference`."""
    strongest = shares.argmax(-1)
    other = (strongest != reference) & (
        _share_of(shares, strongest) >= factor * _share_of(shares, reference)
    )
    return np.where(other, strongest, reference), other


def _share_of(
    shares: Float[np.ndarray, "*cells keys"], key: Int[np.ndarray, "*cells"]
) -> Float[np.ndarray, "*cells"]:
    return np.take_along_axis(shares, key[..., None], -1)[..., 0]


class MovingLayers(NamedTuple):
    """Number of moving layers with bounds, and share of moving examples in each layer with intervals."""

    number: Int[np.ndarray, "*draws"]
    low: Int[np.ndarray, "*draws"]
    high: Int[np.ndarray, "*draws"]
    share: Float[np.ndarray, "*draws layers"]
    share_low: Float[np.ndarray, "*draws layers"]
    share_high: Float[np.ndarray, "*draws layers"]


def moving_layers(
    moved: Real[np.ndarray, "n *draws layers"],
    real: Bool[np.ndarray, " layers"] | None = None,
    *,
    level: float = 0.95,
    half: float = HALF,
) -> MovingLayers:
    """Count the layers in which more than half of the examples move.

    The shares of the layers have Clopper and Pearson's intervals at a level corrected for the number of
    layers (Bonferroni), so that all intervals hold together at `level`. `low` counts the layers that
    certainly move, and `high` counts the layers that may move.

    Args:
        moved: 1 where an example's reference key changed in a layer, else 0.
        real: layers whose anchor is known to exist; other layers count only in `high`. None: all layers.
        level: confidence of both bounds of the number.
        half: share of moving examples above which a layer moves.
    """
    layers = moved.shape[-1]
    corrected = 1 - (1 - level) / layers
    value, low, high = share(moved.sum(0).astype(float), float(len(moved)), level=corrected)
    exists = np.ones(layers, bool) if real is None else real
    return MovingLayers(
        number=((value > half) & exists).sum(-1),
        low=((low > half) & exists).sum(-1),
        high=(high > half).sum(-1),
        share=value,
        share_low=low,
        share_high=high,
    )
