"""Anchors (sinks, floating tokens): one API, named rules, each with its limits.

A rule looks at c_j, the mean attention that key j receives from the queries that see it, and says
which keys are anchors: per head, or on the mean over heads. The same rule, aggregation and
normalisation serve every model of a comparison. (The published code took position 0 for causal
models and the arg-max column for diffusion models: these cannot be compared.)

A measure asks of a saved trace (numpy), an intervention of a network at work (torch): the rules are
written once, for both.
"""

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

Array = Any  # a numpy array or a torch tensor (…, key); NaN = a key that is not there


@dataclass(frozen=True)
class Rule:
    """Which keys are anchors. `per_head` applies the rule to every head instead of their mean."""

    per_head: bool = field(default=False, kw_only=True)

    def __call__(self, trace: Any) -> "xr.DataArray":
        """Of a Trace, true where a key is an anchor: (step, layer[, head], key); absent keys are False."""
        return self.of(trace.received if self.per_head else trace.mean_received)

    @property
    def needs(self) -> str:
        """The statistic that a trace must keep for this rule."""
        return "mass" if self.per_head else "head_mean"

    def of(self, received: "xr.DataArray", *, warn: bool = True) -> "xr.DataArray":
        """The rule on any labelled array of received attention with a `key` dimension."""
        by_key = received.transpose(..., "key")
        values = by_key.values
        limit = self.limit(int((~np.isnan(values)).sum(-1).min())) if warn else None
        if limit:
            warnings.warn(limit, stacklevel=3)
        return by_key.copy(deep=False, data=self.passes(values)).transpose(*received.dims)

    def passes(self, received: Array) -> Array:
        """The rule on a numpy array or a torch tensor whose last axis is the keys."""
        raise TypeError(f"{type(self).__name__} must define passes")

    def limit(self, size: int) -> str | None:
        """What this rule cannot do at this length, if anything."""
        return None


@dataclass(frozen=True)
class Share(Rule):
    """c_j > threshold. Gu et al. 2410.10781 (threshold 0.3, per head; Sink_k counts heads)."""

    threshold: float = 0.3

    def passes(self, received: Array) -> Array:
        return received > self.threshold


@dataclass(frozen=True)
class Excess(Rule):
    """S·c_j > mean of the others + margin. Rulli et al. 2510.15731.

    Printed there on means, where it can never fire (a mean never exceeds 1, and the margin is 3): it
    is meant for column sums.
    """

    margin: float = 3.0

    def passes(self, received: Array) -> Array:
        total, size = _sum_and_count(received)
        columns = received * size
        others = (total * size - columns) / (size - 1).clip(1)
        return columns > others + self.margin


@dataclass(frozen=True)
class ZScore(Rule):
    """c_j > mean + k·(population standard deviation). Attention Floating 2601.07894 (k = 3).

    No more than S/(1 + k²) keys can pass, and none if S ≤ 1 + k²: with k = 3 that is S/10, and 10.
    """

    k: float = 3.0

    def passes(self, received: Array) -> Array:
        total, size = _sum_and_count(received)
        apart = received - total / size.clip(1)
        squares, _ = _sum_and_count(apart**2)
        return apart > self.k * (squares / size.clip(1)) ** 0.5

    def limit(self, size: int) -> str | None:
        if size > 1 + self.k**2:
            return None
        return (
            f"ZScore({self.k:g}) finds no anchor among {size} keys, whatever they receive: it needs "
            f"more than {1 + self.k**2:g}. Use Robust or Excess for short sequences."
        )


@dataclass(frozen=True)
class Robust(Rule):
    """(c_j − median) / (1.4826·MAD) > k. Ours: no cap on how many keys may pass."""

    k: float = 8.0

    def passes(self, received: Array) -> Array:
        apart = received - _median(received)
        spread = 1.4826 * _median(abs(apart))
        return apart > self.k * spread.clip(1e-12)


RULES: tuple[type[Rule], ...] = (Share, Excess, ZScore, Robust)


def _sum_and_count(values: Array) -> tuple[Array, Array]:
    """Over the keys that are there, as (…, 1)."""
    if isinstance(values, np.ndarray):
        return np.nansum(values, -1, keepdims=True), (~np.isnan(values)).sum(-1, keepdims=True)
    return values.nan_to_num(0.0).sum(-1, keepdim=True), (~values.isnan()).sum(-1, keepdim=True)


def _median(values: Array) -> Array:
    if isinstance(values, np.ndarray):
        if not np.isnan(values).any():  # nanmedian takes one row after another
            return np.median(values, axis=-1, keepdims=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # no key is there at all: NaN is right
            return np.nanmedian(values, axis=-1, keepdims=True)
    return values.nanquantile(0.5, dim=-1, keepdim=True)  # nanmedian takes the lower of two
