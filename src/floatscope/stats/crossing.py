"""Test whether a mean crosses a threshold between two groups of examples, for many means at once.

The module `discoveries` selects and counts significant results from the p-values.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_NIL = 1e-6  # a smaller spread is rounding error


class Crossing(NamedTuple):
    """p-values of two tests of a pair of means against a threshold.

    `crosses` is small if the means lie on different sides of the threshold, `stays` if they lie on the
    same side.
    """

    crosses: Float[np.ndarray, "*rest"]
    stays: Float[np.ndarray, "*rest"]


def crossing(
    a: Float[np.ndarray, "n *rest"], b: Float[np.ndarray, "m *rest"], threshold: float
) -> Crossing:
    """Test the mean shares (0 to 1) of two independent groups against a threshold.

    "Crosses" in one direction combines two statements (the first mean is above, the second is below), so its
    p-value is the larger of their two p-values (intersection–union: Berger 1982). The result is the smaller
    p-value of the two directions. No factor of two is needed: if both means lie on one side, either direction
    requires an error in one group.
    """
    (above_a, below_a), (above_b, below_b) = (sides(x, threshold) for x in (a, b))
    return Crossing(
        crosses=np.minimum(np.maximum(above_a, below_b), np.maximum(below_a, above_b)),
        stays=np.minimum(np.maximum(above_a, above_b), np.maximum(below_a, below_b)),
    )


def sides(
    values: Float[np.ndarray, "n *rest"], threshold: float
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Return the p-values of one-sided t tests that the mean is above and that it is below the threshold.

    If all values are equal, a t test would be certain. The p-value is then the probability that the sample
    missed all deviating examples: for the mean to lie beyond the threshold, some share of all examples must
    have the value 0, or the value 1, but none of the n examples has this value. Samples of one or two values
    are treated in the same way.
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
