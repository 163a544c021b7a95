"""The random-effects mean: against a published example, a slow reference, and the truth."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from floatscope.errors import UsageError
from floatscope.stats.intervals import random_effects_mean

# Thirteen trials of the BCG vaccine (Colditz et al., JAMA 271, 1994): ill and well, vaccinated and not.
BCG = """
    4 119 11 128   6 300 29 274   3 228 11 209   62 13536 248 12619   33 5036 47 5761
    180 1361 372 1079   8 2537 10 619   505 87886 499 87892   29 7470 45 7232   17 1699 65 1600
    186 50448 141 27197   5 2493 3 2338   27 16886 29 17825
"""


def trials():
    """Log risk ratios and their standard errors."""
    a, b, c, d = np.array(BCG.split(), float).reshape(-1, 4).T
    return np.log(a / (a + b) / (c / (c + d))), np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))


def test_random_effects_mean_equals_the_published_example():
    """As the R package metafor prints it: REML τ² = 0.3132, I² = 92.22 %, estimate −0.7145."""
    found = random_effects_mean(*trials())
    assert found.tau**2 == pytest.approx(0.3132, abs=5e-5)
    assert found.i2 == pytest.approx(0.9222, abs=5e-5)
    assert found.mean == pytest.approx(-0.7145, abs=5e-5)


def slowly(values, errors, level, between=None):
    """Maximise the restricted likelihood itself, or take its τ²; then Hartung and Knapp term by term."""

    def parts(between):
        weights = [1 / (error**2 + between) for error in errors]
        mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
        return weights, mean

    def loss(between):
        weights, mean = parts(between)
        fit = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
        return fit - math.fsum(map(math.log, weights)) + math.log(math.fsum(weights))

    if between is None:
        between = likeliest(loss, values)
    weights, mean = parts(between)
    k, total = len(values), math.fsum(weights)
    spread = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) / (k - 1)
    half = stats.t.ppf((1 + level) / 2, k - 1) * math.sqrt(max(spread, 1) / total)
    return mean, mean - half, mean + half, math.sqrt(between)


def likeliest(loss, values):
    most = 4 * float(np.var(values)) + 1e-6
    inside = optimize.minimize_scalar(
        loss, bounds=(0, most), method="bounded", options={"xatol": 1e-12}
    )
    return inside.x if inside.fun < loss(0.0) else 0.0


@pytest.mark.parametrize("seed", range(8))
def test_random_effects_mean_equals_a_slow_maximum_of_the_likelihood(seed):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 15))
    errors = rng.uniform(0.2, 2.0, k)
    values = rng.normal(0, rng.choice([0.0, 1.0, 3.0]), k) + rng.normal(0, errors)
    found = random_effects_mean(values, errors, level=0.99)
    ends = (found.mean, found.low, found.high, found.tau)
    assert ends == pytest.approx(slowly(values, errors, 0.99), abs=2e-4)
    assert ends == pytest.approx(slowly(values, errors, 0.99, found.tau**2), rel=1e-9)


def test_units_that_agree_have_no_variance_between_them():
    found = random_effects_mean(np.full(6, 0.3), np.full(6, 0.1))
    assert found.tau == found.i2 == 0.0 and found.mean == pytest.approx(0.3)
    assert found.high - found.mean == pytest.approx(2.5706 * 0.1 / math.sqrt(6), rel=1e-4)


@pytest.mark.parametrize(("k", "between"), [(5, 0.0), (5, 1.0), (8, 0.5), (20, 2.0)])
def test_coverage(k, between):
    """Unequal errors, known from 24 examples each."""
    rng = np.random.default_rng(k)
    held, draws = {0.95: 0, 0.995: 0}, 600
    for _ in range(draws):
        spread = rng.uniform(0.5, 2.0, k)
        values = rng.normal(0, between, k) + rng.normal(0, spread / math.sqrt(24))
        errors = spread / math.sqrt(24) * np.sqrt(rng.chisquare(23, k) / 23)
        for level in held:
            found = random_effects_mean(values, errors, level=level)
            held[level] += found.low <= 0 <= found.high
    assert held[0.95] / draws >= 0.93 and held[0.995] / draws >= 0.985, held


@pytest.mark.parametrize(("values", "errors"), [([1.0], [1.0]), ([1.0, 2.0], [1.0, 0.0])])
def test_estimates_without_an_error_are_refused(values, errors):
    with pytest.raises(UsageError, match="errors above zero"):
        random_effects_mean(np.array(values), np.array(errors))


def test_ends_are_clipped_to_the_bounds_but_not_past_the_mean():
    values, errors = np.array([0.6, 0.9, 0.99]), np.full(3, 0.05)
    free, found = (random_effects_mean(values, errors, bounds=b) for b in (None, (0, 1)))
    assert free.high > 1 and found.high == 1 and found.low == free.low and found.mean == free.mean
    beyond = random_effects_mean(
        values + 0.3, errors, bounds=(0, 1)
    )  # a ratio may exceed its range
    assert beyond.low < beyond.mean == beyond.high
