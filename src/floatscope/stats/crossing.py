"""Does a mean cross a threshold between two groups of examples? p-values, many means at once.

No list and no count is made of them: `discoveries` does.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_NIL = 1e-6  # a spread below is rounding


class Crossing(NamedTuple):
    """p-values of two null hypotheses, which between them say all: that the means do not cross the
    threshold (small: they do), and that they do (small: both are on one side)."""

    crosses: Float[np.ndarray, "*rest"]
    stays: Float[np.ndarray, "*rest"]


def crossing(
    a: Float[np.ndarray, "n *rest"], b: Float[np.ndarray, "m *rest"], threshold: float
) -> Crossing:
    """Of shares between 0 and 1 in two independent groups.

    "Crosses" is two statements at once (one mean above, the other below), so its p-value is the larger
    of theirs (intersection–union: Berger 1982), and the smaller over both directions. No factor of two
    is due: where both means lie on one side, one direction takes an error in each group.
    """
    (above_a, below_a), (above_b, below_b) = (sides(x, threshold) for x in (a, b))
    return Crossing(
        crosses=np.minimum(np.maximum(above_a, below_b), np.maximum(below_a, above_b)),
        stays=np.minimum(np.maximum(above_a, above_b), np.maximum(below_a, below_b)),
    )


def sides(
    values: Float[np.ndarray, "n *rest"], threshold: float
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """p-values that the mean is above the threshold, and that it is below: one-sided t tests.

    Where all values are one, a t test would be certain. There the p-value is the chance not to have met
    the example that would matter most: for the mean to lie beyond the threshold, a share of examples
    must have a value of 0, or of 1, that none of the n had. The same is asked of two values or fewer.
    """
    from scipy.stats import t

    n, mean = len(values), values.mean(0)
    spread = values.std(0, ddof=1) if n > 2 else np.zeros_like(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        unseen_above = np.where(mean > threshold, (threshold / mean) ** n, 1.0)
        unseen_below = np.where(mean < threshold, ((1 - threshold) / (1 - mean)) ** n, 1.0)
        ratio = (mean - threshold) / (spread / np.sqrt(n))
    varies = spread > _NIL
    above = np.where(varies, t.sf(ratio, n - 1), unseen_above)
    below = np.where(varies, t.cdf(ratio, n - 1), unseen_below)
    return above, below
