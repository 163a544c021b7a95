"""Rules for anchors (sinks, floating tokens), with one interface and stated limits.

c_j is the mean attention that key j receives from the queries that see it. From c_j, a rule determines which
keys are anchors, per head or on the mean over heads. The same rule, aggregation and normalisation apply to
every model of a comparison. (The published code of Attention Floating used position 0 for causal models and
the arg-max column for diffusion models. These two anchors cannot be compared.)

Measures apply rules to saved traces (numpy), and interventions apply rules to running networks (torch). One
implementation of each rule works for both.
"""

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

Array = Any  # a numpy array or a torch tensor (…, key); NaN marks an absent key


@dataclass(frozen=True)
class Rule:
    """Base class of rules that determine which keys are anchors.

    Args:
        per_head: whether to apply the rule to every head; by default, it is applied to the mean over heads.
    """

    per_head: bool = field(default=False, kw_only=True)

    def __call__(self, trace: Any) -> "xr.DataArray":
        """Return which keys of a trace are anchors: (step, layer[, head], key); False at absent keys.

        Args:
            trace (Trace): a trace that keeps `needs`.
        """
        return self.apply(trace.received if self.per_head else trace.mean_received)

    @property
    def needs(self) -> str:
        """Name of the statistic that a trace must keep for this rule."""
        return "mass" if self.per_head else "head_mean"

    def apply(self, received: "xr.DataArray", *, warn: bool = True) -> "xr.DataArray":
        """Apply the rule to a labelled array of received attention and return a boolean array of its shape.

        Args:
            received: received attention c_j with a `key` dimension; NaN marks an absent key.
            warn: warn if the rule cannot find anchors among so few keys, True by default.
        """
        by_key = received.transpose(..., "key")
        values = by_key.values
        limit = self.limit(int((~np.isnan(values)).sum(-1).min())) if warn else None
        if limit:
            warnings.warn(limit, stacklevel=3)
        return by_key.copy(deep=False, data=self.passes(values)).transpose(*received.dims)

    def passes(self, received: Array) -> Array:
        """Apply the rule to a numpy array or torch tensor and return booleans of the same shape.

        Args:
            received: received attention c_j; the last axis is the keys, NaN marks an absent key.
        """
        raise TypeError(f"{type(self).__name__} must define passes")

    def limit(self, size: int) -> str | None:
        """Return why the rule cannot find anchors in a sequence of this length, or None if it can.

        Args:
            size: number of keys.
        """
        return None


@dataclass(frozen=True)
class Share(Rule):
    """Rule for keys with c_j > threshold. Gu et al. 2410.10781 (0.3, per head; Sink_k counts heads).

    c_j is the mean attention that key j receives from the queries that see it.

    Args:
        threshold: mean attention that a key must receive, default 0.3.
    """

    threshold: float = 0.3

    def passes(self, received: Array) -> Array:
        return received > self.threshold


@dataclass(frozen=True)
class Excess(Rule):
    """Rule for keys with S·c_j > mean of the other keys + margin. Rulli et al. 2510.15731.

    c_j is the mean attention that key j receives from the queries that see it, S the number of keys. The
    paper states the rule for means c_j, for which no key can pass, because a mean is at most 1 and the margin
    is 3. The rule is meant for column sums S·c_j.

    Args:
        margin: by how much S·c_j must exceed the mean of the other keys, default 3.
    """

    margin: float = 3.0

    def passes(self, received: Array) -> Array:
        total, size = _sum_and_count(received)
        columns = received * size
        other_mean = (total * size - columns) / (size - 1).clip(1)
        return columns > other_mean + self.margin


@dataclass(frozen=True)
class ZScore(Rule):
    """Rule for keys with c_j > mean + k·(population SD). Attention Floating 2601.07894 (k = 3).

    c_j is the mean attention that key j receives from the queries that see it, S the number of keys. At most
    S/(1 + k²) keys can pass, and no key if S ≤ 1 + k². For k = 3, at most S/10 keys can pass, and no key if
    there are fewer than 11.

    Args:
        k: number of standard deviations, default 3.
    """

    k: float = 3.0

    def passes(self, received: Array) -> Array:
        total, size = _sum_and_count(received)
        deviation = received - total / size.clip(1)
        squares, _ = _sum_and_count(deviation**2)
        return deviation > self.k * (squares / size.clip(1)) ** 0.5

    def limit(self, size: int) -> str | None:
        """Return why the rule cannot find anchors in a sequence of this length, or None if it can.

        Args:
            size: number of keys.
        """
        if size > 1 + self.k**2:
            return None
        return (
            f"ZScore({self.k:g}) finds no anchor among {size} keys, whatever they receive: it needs "
            f"more than {1 + self.k**2:g}. Use Robust or Excess for short sequences."
        )


@dataclass(frozen=True)
class Robust(Rule):
    """Rule for keys with (c_j − median) / (1.4826·MAD) > k. Unlike ZScore, any number of keys can pass.

    c_j is the mean attention that key j receives from the queries that see it; MAD is the median absolute
    deviation.

    Args:
        k: number of robust standard deviations, default 8.
    """

    k: float = 8.0

    def passes(self, received: Array) -> Array:
        deviation = received - _median(received)
        spread = 1.4826 * _median(abs(deviation))
        return deviation > self.k * spread.clip(1e-12)


RULES: tuple[type[Rule], ...] = (Share, Excess, ZScore, Robust)


def _sum_and_count(values: Array) -> tuple[Array, Array]:
    """Return the sum and the number of the values that are not NaN, (…, 1) each."""
    if isinstance(values, np.ndarray):
        return np.nansum(values, -1, keepdims=True), (~np.isnan(values)).sum(-1, keepdims=True)
    return values.nan_to_num(0.0).sum(-1, keepdim=True), (~values.isnan()).sum(-1, keepdim=True)


def _median(values: Array) -> Array:
    if isinstance(values, np.ndarray):
        if not np.isnan(values).any():  # nanmedian loops over rows
            return np.median(values, axis=-1, keepdims=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # NaN is correct if no key exists
            return np.nanmedian(values, axis=-1, keepdims=True)
    # torch's nanmedian returns the lower of two middle values
    return values.nanquantile(0.5, dim=-1, keepdim=True)
