"""Many tests at once: which hypotheses to list, and how many are surely false. p-values in, counts out.

A list is one thing, a count another. Benjamini and Hochberg's list holds 5 % errors on average; a
claim about how many needs a bound that is right at its level, whatever is then picked. No p-value is
computed here.
"""

import numpy as np
from jaxtyping import Bool, Float


def benjamini_hochberg(
    p: Float[np.ndarray, "*shape"], level: float = 0.05
) -> Bool[np.ndarray, "*shape"]:
    """Which hypotheses are rejected so that, on average, a share of at most `level` is in error.

    Benjamini & Hochberg 1995: all up to the largest i with p_(i) ≤ i·level/m. For independent
    p-values, and for positively dependent ones (Benjamini & Yekutieli 2001).
    """
    flat = np.sort(p, axis=None)
    passed = np.flatnonzero(flat <= level * np.arange(1, flat.size + 1) / max(flat.size, 1))
    return p <= flat[passed[-1]] if len(passed) else np.zeros(p.shape, bool)


def q_values(p: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """For each hypothesis the smallest level at which `benjamini_hochberg` rejects it."""
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")
    scaled = flat[order] * flat.size / np.arange(1, flat.size + 1)
    found = np.empty_like(flat)
    found[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(max=1)
    return found.reshape(p.shape)


def at_least(p: Float[np.ndarray, "*shape"], level: float) -> int:
    """At least so many of the hypotheses are false, at confidence 1 − level.

    Closed testing with Simes' test (Goeman & Solari 2011): at most h can all be true, the largest
    number k for which the k largest p-values pass Simes' test together (Hommel 1988). Right wherever
    Simes' inequality is: independence and positive dependence.
    """
    flat = np.sort(p, axis=None)
    m = flat.size
    for k in range(m, 0, -1):
        if (flat[m - k :] > level * np.arange(1, k + 1) / k).all():
            return m - k
    return m
