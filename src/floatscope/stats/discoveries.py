"""Multiple testing: select null hypotheses to reject, and bound the number of real effects.

A list of effects and the number of effects require different methods. In Benjamini and Hochberg's list, 5 %
of the entries are errors on average. A statement about the number of effects requires a bound that holds at
its level for any later selection.
"""

import numpy as np
from jaxtyping import Bool, Float


def benjamini_hochberg(
    p: Float[np.ndarray, "*shape"], level: float = 0.05
) -> Bool[np.ndarray, "*shape"]:
    """Return which hypotheses to reject, with an expected share of false rejections of at most `level`.

    Benjamini & Hochberg 1995: reject the hypotheses 1 … i, in the order of their p-values, for the largest i
    with p_(i) ≤ i·level/m. Valid for independent p-values and for positively dependent ones (Benjamini &
    Yekutieli 2001).
    """
    flat = np.sort(p, axis=None)
    passed = np.flatnonzero(flat <= level * np.arange(1, flat.size + 1) / max(flat.size, 1))
    return p <= flat[passed[-1]] if len(passed) else np.zeros(p.shape, bool)


def q_values(p: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return, for each hypothesis, the smallest level at which `benjamini_hochberg` rejects it."""
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")
    scaled = flat[order] * flat.size / np.arange(1, flat.size + 1)
    q = np.empty_like(flat)
    q[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(max=1)
    return q.reshape(p.shape)


def at_least(p: Float[np.ndarray, "*shape"], level: float) -> int:
    """Return a lower bound on the number of false null hypotheses (real effects), at confidence 1 − level.

    Closed testing with Simes' test (Goeman & Solari 2011): at most h hypotheses can all be true, where h
    is the largest k for which the k largest p-values together pass Simes' test (Hommel 1988). Valid
    whenever Simes' inequality holds: under independence and positive dependence.
    """
    flat = np.sort(p, axis=None)
    m = flat.size
    for k in range(m, 0, -1):
        if (flat[m - k :] > level * np.arange(1, k + 1) / k).all():
            return m - k
    return m
