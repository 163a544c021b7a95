"""Anchors (sinks, floating tokens): one API, named rules, each with its limits.

A rule looks at c_j, the mean attention that key j receives from the queries that see it, and says
which keys are anchors: per head, or on the mean over heads. The same rule, aggregation and
normalisation serve every model of a comparison. (The published code took position 0 for causal
models and the arg-max column for diffusion models: these cannot be compared.)
"""

import warnings
from dataclasses import dataclass, field

import xarray as xr

from ..trace import Trace


@dataclass(frozen=True)
class Rule:
    """Which keys are anchors. `per_head` applies the rule to every head instead of their mean."""

    per_head: bool = field(default=False, kw_only=True)

    def __call__(self, trace: Trace) -> xr.DataArray:
        """True where a key is an anchor: (step, layer[, head], key); keys not there yet are False."""
        received = trace.received if self.per_head else trace.received.mean("head")
        return self.of(received)

    def of(self, received: xr.DataArray) -> xr.DataArray:
        """The rule on any array of received attention with a `key` dimension."""
        size = received.notnull().sum("key")
        limit = self.limit(int(size.min()))
        if limit:
            warnings.warn(limit, stacklevel=3)
        return self.passes(received, size) & received.notnull()

    def passes(self, received: xr.DataArray, size: xr.DataArray) -> xr.DataArray:
        raise TypeError(f"{type(self).__name__} must define passes")

    def limit(self, size: int) -> str | None:
        """What this rule cannot do at this length, if anything."""
        return None


@dataclass(frozen=True)
class Share(Rule):
    """c_j > threshold. Gu et al. 2410.10781 (threshold 0.3, per head; Sink_k counts heads)."""

    threshold: float = 0.3

    def passes(self, received: xr.DataArray, size: xr.DataArray) -> xr.DataArray:
        return received > self.threshold


@dataclass(frozen=True)
class Excess(Rule):
    """S·c_j > mean of the others + margin. Rulli et al. 2510.15731.

    Printed there on means, where it can never fire (a mean never exceeds 1, and the margin is 3): it
    is meant for column sums.
    """

    margin: float = 3.0

    def passes(self, received: xr.DataArray, size: xr.DataArray) -> xr.DataArray:
        columns = received * size
        others = (columns.sum("key") - columns) / (size - 1)
        return columns > others + self.margin


@dataclass(frozen=True)
class ZScore(Rule):
    """c_j > mean + k·(population standard deviation). Attention Floating 2601.07894 (k = 3).

    No more than S/(1 + k²) keys can pass, and none if S ≤ 1 + k²: with k = 3 that is S/10, and 10.
    """

    k: float = 3.0

    def passes(self, received: xr.DataArray, size: xr.DataArray) -> xr.DataArray:
        return received > received.mean("key") + self.k * received.std("key", ddof=0)

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

    def passes(self, received: xr.DataArray, size: xr.DataArray) -> xr.DataArray:
        middle = received.median("key")
        spread = 1.4826 * abs(received - middle).median("key")
        return received - middle > self.k * spread.clip(min=1e-12)


RULES: tuple[type[Rule], ...] = (Share, Excess, ZScore, Robust)
