"""Confidence intervals for means of bounded variables, by betting against candidate means.

The method is that of Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (J.
R. Statist. Soc. B 86, 2024). For values y in [0, 1] with mean m, betting the share u of a capital on large
values multiplies the capital by 1 + u(y/m − 1). This factor is never negative, and its mean is 1. A capital
that grows to 2/α is therefore evidence against m: the probability of such a growth is at most α/2 for any
distribution. A second capital is bet on small values. The interval contains every m for which neither capital
has grown to 2/α.

In the paper, each bet depends on the values before it, so the interval depends on the order of the examples.
Here the capital is divided among six fixed bets (a mixture, as in Cover's universal portfolio): the guarantee
is the same, the order does not matter, and no random numbers are used. For 8 to 40 examples, the intervals
are mostly 5 to 30 % narrower than with the plug-in bets of the paper, truncated at 1/2. For values that are
spread over the whole range, they are up to 12 % wider.
"""

import numpy as np
from jaxtyping import Float

from .student import Cells, Interval

# Bets, in units of √(2 ln(2/α) / n), the best one where the standard deviation equals the mean.
_BETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_LARGEST = 0.99  # largest bet, so that some capital always remains
_HALVINGS = 30  # bisections: 1e-9 of an interval of length 1


def bounded(
    flat: Float[np.ndarray, "n c"], bounds: tuple[float, float], level: float = 0.95
) -> Interval:
    """Compute the mean of every column with a betting interval.

    For independent examples of any distribution between the bounds and for any n, the interval covers the
    mean in a share of at least `level` of samples. The interval stays within the bounds. It also exists for a
    single example and for equal values.

    Args:
        flat: values between the bounds, examples × cells. NaN is not counted.
        bounds: the smallest and the largest possible value, both finite.
        level: nominal coverage.
    """
    bottom, top = bounds
    scaled = (flat - bottom) / (top - bottom)
    n = (~np.isnan(flat)).sum(0).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(np.isnan(scaled), 0.0, scaled).sum(0) / n
        low = _least(scaled, value, n, level)
        high = 1 - _least(1 - scaled, 1 - value, n, level)
    ends = (bottom + end * (top - bottom) for end in (value, low, high))
    value, low, high = (np.where(n > 0, end, np.nan) for end in ends)
    return value, low, high


def _least(scaled: Float[np.ndarray, "n c"], value: Cells, n: Cells, level: float) -> Cells:
    """Find the smallest mean that is not rejected, by bisection; capital falls as the candidate mean grows.

    At the sample mean, no bet has a gain (Jensen's inequality), so the result lies below the sample mean.
    """
    target = np.log(2 / (1 - level))
    unit = np.sqrt(2 * target / np.maximum(n, 1))
    bets = [np.minimum(bet * unit, _LARGEST) for bet in _BETS]
    low, high = np.zeros_like(value), value
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        excess = scaled / np.where(middle > 0, middle, 1.0) - 1
        excess[np.isnan(excess)] = 0.0  # an absent example does not change the capital
        logs = np.stack([np.log1p(bet * excess).sum(0) for bet in bets])
        capital = np.logaddexp.reduce(logs, axis=0) - np.log(len(bets))
        refuted = capital >= target
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    return low
