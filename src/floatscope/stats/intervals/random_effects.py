"""Mean over units that differ, such as models or training runs, each measured with its own error.

The model is a random-effects model: unit i has a true value drawn around the mean with standard deviation τ,
and is measured with standard error s_i. τ² is estimated by restricted maximum likelihood (Viechtbauer, J.
Educ. Behav. Stat. 30, 2005). The interval is that of Hartung and Knapp (Statist. Med. 20, 2001), computed
from Student's quantile, with the number of units minus one as degrees of freedom, and the observed scatter of
the units around their mean. If this scatter is smaller than the errors of the units allow, the errors are
used instead (Röver, Knapp and Friede, BMC Med. Res. Methodol. 15, 2015).
"""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float

from ...errors import UsageError
from .means import Bounds

_ROUNDS = 10_000
_CLOSE = 1e-12  # relative change of τ² at which the iteration stops


@dataclass(frozen=True)
class RandomEffects:
    """Mean over units with its interval, and the variation between units."""

    mean: float
    low: float
    high: float
    tau: float  # standard deviation between units
    i2: float  # share of the variance that is between units
    units: int
    level: float


def random_effects_mean(
    values: Float[np.ndarray, " k"],
    errors: Float[np.ndarray, " k"],
    *,
    level: float = 0.95,
    bounds: Bounds | None = None,
) -> RandomEffects:
    """Compute the random-effects mean of two or more units.

    Args:
        values: one estimate per unit.
        errors: the standard error of each estimate, greater than zero.
        level: nominal coverage of the interval.
        bounds: range of the quantity. The ends of the interval are clipped to this range, but never past the
            mean.
    """
    values, errors = np.asarray(values, np.float64), np.asarray(errors, np.float64)
    usable = np.isfinite(values).all() and np.isfinite(errors).all() and (errors > 0).all()
    if len(values) < 2 or len(values) != len(errors) or not usable:
        raise UsageError(
            f"expected two or more estimates with errors above zero, got {len(values)} and "
            f"{len(errors)}",
            "Leave out units that have no interval.",
        )
    k, variances = len(values), errors**2
    between = _restricted_likelihood(values, variances)
    weights = 1 / (variances + between)
    total = weights.sum()
    mean = float((weights * values).sum() / total)
    scatter = (weights * (values - mean) ** 2).sum() / (k - 1)
    half = float(scipy.special.stdtrit(k - 1, (1 + level) / 2) * np.sqrt(max(scatter, 1.0) / total))
    floor, ceiling = bounds or (-np.inf, np.inf)
    fixed = 1 / variances
    typical = (k - 1) * fixed.sum() / (fixed.sum() ** 2 - (fixed**2).sum())
    return RandomEffects(
        mean=mean,
        low=min(max(mean - half, floor), mean),
        high=max(min(mean + half, ceiling), mean),
        tau=float(np.sqrt(between)),
        i2=float(between / (between + typical)),
        units=k,
        level=level,
    )


def _restricted_likelihood(
    values: Float[np.ndarray, " k"], variances: Float[np.ndarray, " k"]
) -> float:
    """Return τ² ≥ 0, by iterating the estimating equation of the restricted likelihood."""
    between = max(0.0, float(values.var(ddof=1) - variances.mean()))
    for _ in range(_ROUNDS):
        weights = 1 / (variances + between)
        total, squares = weights.sum(), weights**2
        mean = (weights * values).sum() / total
        excess = (squares * ((values - mean) ** 2 - variances)).sum() / squares.sum()
        new = max(0.0, float(excess + 1 / total))
        if abs(new - between) <= _CLOSE * (new + variances.mean()):
            return new
        between = new
    return between
