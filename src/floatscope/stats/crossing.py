"""Does a mean cross a threshold between two groups of examples? p-values, many means at once.

No list and no count is made of them: `discoveries` does.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


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
