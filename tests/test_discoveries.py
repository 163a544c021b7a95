"""Lists and counts of many tests: against scipy, against closed testing by definition, by simulation."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from floatscope.stats.crossing import crossing, sides
from floatscope.stats.discoveries import at_least, benjamini_hochberg

THRESHOLD, HEADS, N = 0.3, 192, 24


def mixed(rng, m):
    """Some small p-values, some uniform, some equal."""
    p = rng.uniform(size=m) ** rng.choice([1, 3, 8], size=m)
    return np.round(p, 2) if rng.uniform() < 0.3 else p


def test_benjamini_hochberg_equals_scipy():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = mixed(rng, rng.integers(1, 40))
        level = rng.choice([0.01, 0.05, 0.2])
        expected = stats.false_discovery_control(p) <= level
        np.testing.assert_array_equal(benjamini_hochberg(p, level), expected)
    assert benjamini_hochberg(np.array([[0.001, 0.9], [0.002, 0.8]])).tolist() == [[1, 0], [1, 0]]


def closed(p, level):
    """By definition: the largest set of hypotheses that Simes' test lets pass could all be true."""
    m = len(p)
    for k in range(m, 0, -1):
        for chosen in combinations(range(m), k):
            ordered = np.sort(p[list(chosen)])
            if (ordered > level * np.arange(1, k + 1) / k).all():
                return m - k
    return m


def test_at_least_equals_closed_testing():
    rng = np.random.default_rng(1)
    for _ in range(60):
        p = mixed(rng, rng.integers(1, 9))
        assert at_least(p, 0.1) == closed(p, 0.1)
    assert at_least(np.zeros(7), 0.05) == 7 and at_least(np.ones(7), 0.05) == 0


def masses(rng, mean, spread, n=N):
    """Shares of attention: skewed, and heads of one example rise and fall together."""
    mean = np.asarray(mean, float)
    z = np.sqrt(0.4) * rng.normal(size=(n, 1)) + np.sqrt(0.6) * rng.normal(size=(n, mean.size))
    wide = np.sqrt(np.log1p((spread / mean) ** 2))
    return mean * np.exp(wide * z - wide**2 / 2)


def test_p_values_of_a_side_equal_those_of_a_t_test():
    values = masses(np.random.default_rng(2), [0.1, 0.28, 0.5], 0.05)
    for p, way in zip(sides(values, THRESHOLD), ("greater", "less"), strict=True):
        expected = stats.ttest_1samp(values, THRESHOLD, alternative=way).pvalue
        np.testing.assert_allclose(p, expected, rtol=1e-9)


def test_constant_values_never_have_p_value_zero():
    """24 times 0: a mean of 0.3 needs 30 % of examples at 1, and none was met."""
    above, below = sides(np.stack([np.zeros(24), np.full(24, 0.6)], 1), THRESHOLD)
    np.testing.assert_allclose(below, [0.7**24, 1])
    np.testing.assert_allclose(above, [1, 0.5**24])


def test_without_a_crossing_none_is_found_in_95_of_100_runs():
    """The least favourable truth: over questions every head's mean is the threshold itself."""
    rng, wrong, listed, runs = np.random.default_rng(3), 0, 0, 200
    for _ in range(runs):
        a, b = masses(rng, [0.3] * HEADS, 0.06), masses(rng, [0.1] * HEADS, 0.04)
        p = crossing(a, b, THRESHOLD).crosses
        wrong += at_least(p, 0.05) > 0
        listed += bool(benjamini_hochberg(p).any())
    assert stats.binomtest(wrong, runs, 0.05, alternative="greater").pvalue > 0.01
    assert stats.binomtest(listed, runs, 0.05, alternative="greater").pvalue > 0.01


def test_bounds_hold_the_true_number_and_planted_heads_are_found():
    rng, inside, found, false, runs = np.random.default_rng(4), 0, [], [], 60
    one = np.full(HEADS, 0.1)
    one[:40], one[40:60] = 0.45, 0.3  # forty cross, twenty lie on the threshold: they do not
    two = np.full(HEADS, 0.12)
    for _ in range(runs):
        p = crossing(masses(rng, one, 0.06), masses(rng, two, 0.05), THRESHOLD)
        least, most = at_least(p.crosses, 0.025), HEADS - at_least(p.stays, 0.025)
        inside += least <= 40 <= most
        listed = benjamini_hochberg(p.crosses)
        found.append(listed[:40].mean())
        false.append(listed[40:].sum() / max(listed.sum(), 1))
    assert inside >= 0.95 * runs - 3
    assert np.mean(found) > 0.95 and np.mean(false) < 0.05


def test_both_directions_cross_and_a_difference_does_not():
    rng = np.random.default_rng(5)
    a = masses(rng, [0.5, 0.1, 0.05, 0.6], 0.05)
    b = masses(rng, [0.1, 0.5, 0.20, 0.4], 0.05)
    p = crossing(a, b, THRESHOLD)
    assert (p.crosses[:2] < 1e-4).all() and (p.stays[:2] > 0.9).all()
    assert (p.crosses[2:] > 0.9).all() and (p.stays[2:] < 1e-4).all()
    swapped = crossing(b, a, THRESHOLD)
    assert swapped.crosses == pytest.approx(p.crosses)
