"""Chance levels for sets of anchors and for the strongest key, under random attention.

Two independent states of random attention are compared by the a strongest keys of one state and the b
strongest keys of the other. If every query sees every key, keys are exchangeable and all levels are exact
(hypergeometric). In causal and block-causal models, early keys receive more attention by construction and the
attention of late keys is a mean of few rows, so the same keys recur by chance. For these models, the states
are simulated with a fixed seed from means and variances alone, which is accurate to about a tenth. Inputs are
plain numbers, not models or traces.
"""

from functools import lru_cache
from math import exp, lgamma
from typing import Any

import numpy as np

DRAWS = 256
_MEDIAN_OF_SQUARE = 0.4549  # of a standard normal variable


def profile(visible: np.ndarray, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of the attention that each key receives from random rows.

    `visible` counts the queries that see each key. Every query sees a prefix of the keys (causal,
    block-causal, bidirectional), so the counts determine the number of queries for each number of visible
    keys. `noise` is the squared relative spread of a weight before its row is normalised; after
    normalisation, the weights of a row over n keys have (n − 1)/(n + noise) times this spread (exact for
    gamma weights).
    """
    n = np.arange(1, len(visible) + 1)
    leaving = visible - np.append(visible[1:], 0)  # queries whose last visible key is this one
    row = noise * (n - 1) / (n + noise) / n**2
    mean = np.cumsum((leaving / n)[::-1])[::-1] / visible
    return mean, np.cumsum((leaving * row)[::-1])[::-1] / visible**2


def noise_of(visible: np.ndarray, received: np.ndarray) -> float:
    """Estimate `noise` of `profile` from the median squared deviation of keys from their expected attention.

    The median ignores anchors. An anchor also reduces the attention of all other keys. This common loss is
    not noise, so it is added back before the estimate.
    """
    mean, _ = profile(visible)
    relative = received / mean
    received = mean * relative / _median(relative)
    finite = ~np.isnan(received)
    squares = ((received - mean) ** 2)[finite]
    noise = 1.0
    for _ in range(5):
        _, variance = profile(visible, noise)
        relative = squares / np.broadcast_to(variance, received.shape)[finite]
        noise *= float(np.median(relative)) / _MEDIAN_OF_SQUARE
        noise = min(max(noise, 1e-9), 1e3)
    return noise


def _median(values: np.ndarray) -> np.ndarray:
    """Compute the median of each row without NaN, like `np.nanmedian` but without a loop over rows."""
    ordered = np.sort(values, axis=-1)  # NaNs are sorted last
    count = (~np.isnan(values)).sum(-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, i, -1) for i in ((count - 1) // 2, count // 2))
    return np.asarray((low + high) / 2)


@lru_cache(maxsize=100_000)
def exact_jaccard(a: int, b: int, n: int) -> float:
    """Return the expected Jaccard index of random sets of a and of b of n keys; NaN for two empty sets."""
    if a + b == 0:
        return float("nan")

    def ln(top: int, k: int) -> float:
        return lgamma(top + 1) - lgamma(k + 1) - lgamma(top - k + 1)

    return sum(  # scipy's distribution takes eight times as long
        exp(ln(a, k) + ln(n - a, b - k) - ln(n, b)) * k / (a + b - k)
        for k in range(max(1, a + b - n), min(a, b) + 1)
    )


@lru_cache(maxsize=1)
def _stream(size: int) -> np.ndarray:
    normal = np.random.default_rng(0).standard_normal(size)
    normal.flags.writeable = False
    return normal


def _standard_normal(n: int) -> np.ndarray:
    """Draw two states of n keys, DRAWS times: (2, DRAWS, n), with the same random stream for every n."""
    size = 2 * DRAWS * n
    return _stream(1 << (size - 1).bit_length())[:size].reshape(2, DRAWS, n)


class _Simulated:
    """Two simulated states of `values` (2, draws, n), and the overlap of their strongest keys."""

    def __init__(self, values: np.ndarray) -> None:
        self._values, self._ranked = values, 0

    def shared(self, a: int, b: int) -> np.ndarray:
        """Count the keys in both the a strongest of one state and the b strongest of the other: (draws,)."""
        if not a or not b:
            return np.zeros(self._values.shape[1], int)
        if max(a, b) > self._ranked:
            self._rank(1 << (max(a, b, 32) - 1).bit_length())
        inside = self._other[:, :a] >= self._least[:, b - 1, None]
        return np.asarray(inside.sum(-1))

    def _rank(self, count: int) -> None:
        """Store the second state's values at the first state's `count` strongest keys, strongest first.

        The largest values of the second state are also stored, in descending order.
        """
        first, second = self._values
        count = self._ranked = min(count, first.shape[-1])
        # the strongest last, because numpy is six times as fast at that end
        cut = first.shape[-1] - count
        keys = np.argpartition(first, cut, axis=-1)[:, cut:]
        order = np.argsort(-np.take_along_axis(first, keys, -1), axis=-1)
        self._other = np.take_along_axis(second, np.take_along_axis(keys, order, -1), -1)
        self._least = np.sort(np.partition(second, cut, axis=-1)[:, cut:], axis=-1)[:, ::-1]


class Chance:
    """Chance levels of the strongest keys, and of pairs of states, for one set of keys.

    `visible` (n,) counts the queries that see each key; `received` (states, n) is the measured attention,
    from which the noise of rows is estimated.
    """

    def __init__(self, visible: np.ndarray, received: np.ndarray) -> None:
        present = visible > 0  # NaN marks an absent key
        visible, received = visible[present], received[..., present]
        self.n = n = len(visible)
        self._pairs: dict[tuple[int, int], tuple[float, float]] = {}
        self._simulated: _Simulated | None = None
        self._tops: Any = None
        if n and (visible == visible[0]).all():
            self.stay, self.displacement = 1 / n, (n * n - 1) / (3 * n)
            return
        mean, variance = profile(visible, noise_of(visible, received))
        spread = np.sqrt(np.log1p(variance / mean**2))
        values = spread * _standard_normal(n)
        values += np.log(mean) - spread**2 / 2
        self._simulated = _Simulated(values)
        first, second = self._tops = values.argmax(-1)
        self.stay, self.displacement = (
            float((first == second).mean()),
            float(abs(first - second).mean()),
        )

    @property
    def first(self) -> float:
        """Probability that the strongest key is the first one."""
        return 1 / self.n if self._tops is None else float((self._tops == 0).mean())

    @property
    def position(self) -> float:
        """Mean position of the strongest key, as a share of the length."""
        return 0.5 if self._tops is None else float(self._tops.mean() / max(self.n - 1, 1))

    def histogram(self, bins: int) -> np.ndarray:
        """Return the share of strongest keys in each of `bins` equal parts of the length."""
        if self._tops is None:
            return np.full(bins, 1 / bins)
        place = np.minimum(self._tops.ravel() / max(self.n - 1, 1) * bins, bins - 1).astype(int)
        return np.asarray(np.bincount(place, minlength=bins) / place.size)

    def pair(self, a: int, b: int) -> tuple[float, float]:
        """Return the expected Jaccard index of the a and b strongest keys of two states, and their overlap.

        The overlap is the expected number of keys in both sets.
        """
        if (a, b) not in self._pairs:
            if self._simulated is None:
                self._pairs[a, b] = exact_jaccard(a, b, self.n), a * b / self.n
            else:
                shared = self._simulated.shared(a, b)
                jaccard = (shared / (a + b - shared)).mean() if a + b else np.nan
                self._pairs[a, b] = float(jaccard), float(shared.mean())
        return self._pairs[a, b]
