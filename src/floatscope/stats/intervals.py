"""Intervals: one place, used by all. A bootstrap over examples, paired where two are compared.

Examples are what was sampled, so examples are what is drawn again; steps, layers and heads of one
example are not independent and never count as n. One example has no interval: it is NaN.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float

DRAWS = 1000


def bootstrap(
    values: Float[np.ndarray, "n *rest"], *, seed: int = 0, draws: int = DRAWS
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Mean over examples with its 95 % interval, cell by cell; NaN means "does not apply" there."""
    values = np.asarray(values, dtype=np.float64)
    n, rest = len(values), values.shape[1:]
    flat = values.reshape(n, -1)
    there = ~np.isnan(flat)
    filled = np.where(there, flat, 0.0)
    count = there.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(0) / count
        if n < 2:
            low = high = np.full(flat.shape[1], np.nan)
        else:
            weight = _times_drawn(n, seed, draws)  # one matrix product does all cells at once
            drawn = (weight @ filled) / (n if there.all() else weight @ there.astype(np.float64))
            low, high = _quantiles(drawn)
            low, high = (np.where(count > 1, x, np.nan) for x in (low, high))
    return mean.reshape(rest), low.reshape(rest), high.reshape(rest)


def difference(
    a: Float[np.ndarray, "n *rest"], b: Float[np.ndarray, "n *rest"], *, seed: int = 0
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """a − b over the same examples, paired: what varies between examples alike cancels."""
    return bootstrap(np.asarray(a, float) - np.asarray(b, float), seed=seed)


@lru_cache(maxsize=4)
def _times_drawn(n: int, seed: int, draws: int) -> Float[np.ndarray, "draws n"]:
    """How often each example is drawn: floats, since products of integers are slow."""
    weight = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    return weight.astype(np.float64)


def _quantiles(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.full(drawn.shape[1], np.nan), np.full(drawn.shape[1], np.nan)
    absent = np.isnan(drawn)
    whole, some = ~absent.any(0), absent.any(0) & ~absent.all(0)
    # nanquantile goes column by column: where nothing is absent, quantile gives the same at once.
    for these, quantile in ((whole, np.quantile), (some, np.nanquantile)):
        if these.any():
            low[these], high[these] = quantile(drawn[:, these], [0.025, 0.975], axis=0)
    return low, high


def stack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([np.asarray(a, dtype=np.float64) for a in arrays])


def mean(values: np.ndarray, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from scipy import stats

    values = np.asarray(values, float)
    n = (~np.isnan(values)).sum(0)
    middle = np.nanmean(values, axis=0)
    half = stats.t.ppf((1 + level) / 2, n - 1) * np.nanstd(values, axis=0, ddof=1) / np.sqrt(n)
    return np.asarray(middle), np.asarray(middle - half), np.asarray(middle + half)


def needed(
    value: float, low: float, high: float, n: int, target: float, level: float, power: float = 0.8
) -> float | None:
    from scipy import stats

    if value == target:
        return None
    z, beta = stats.norm.ppf((1 + level) / 2), stats.norm.ppf(power)
    spread = (high - low) / 2 / z * np.sqrt(n)
    return float(((z + beta) * spread / (value - target)) ** 2)
