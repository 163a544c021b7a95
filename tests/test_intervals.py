"""Intervals: against published values and independent re-statements, and that they hold the truth."""

import importlib.util
import json
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import optimize, stats

import floatscope as fs
from floatscope.measures.result import summarise
from floatscope.stats import intervals
from floatscope.stats.intervals.shares import paired_shares, score_limits
from floatscope.stats.intervals.student import student
from floatscope.studies.numbers import overall

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture(scope="module")
def coverage():
    sys.path.insert(0, str(BENCH))
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", BENCH / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(coverage):
    """Made once: the truth of some of them is simulated."""
    return list(coverage.cases())


# Do they cover?


def test_every_kind_covers_in_simulation(coverage, cases):
    """A short form of bench/coverage.py: fixed seeds, and 2.5 standard errors of slack."""
    short = []
    for case in cases:
        for n in coverage.SIZES:
            trials = min(600, case.most // 50)
            sample = case.draw(np.random.default_rng(n), n, trials)
            found = coverage.covered(case.interval(*sample, level=0.95), case.truth)
            least = coverage.LEAST[0.95, n] if not case.short else 0.0
            if found["covers"] < least - 2.5 * np.sqrt(least * (1 - least) / trials):
                short.append((case.kind, case.name, n, found))
    assert not short


def test_the_percentile_bootstrap_does_not_cover(coverage, cases):
    """What was here before fails the same simulation, so the simulation can fail."""

    def old(values, level):
        draw = np.random.default_rng(0).integers(0, len(values), (200, len(values)))
        tails = [(1 - level) / 2, (1 + level) / 2]
        return values.mean(0), *np.quantile(values[draw].mean(1), tails, axis=0)

    short = set()
    for case in cases:
        if case.kind in ("mean", "share"):
            (values,) = case.draw(np.random.default_rng(8), 8, 600)
            covers = coverage.covered(old(values, 0.95), case.truth)["covers"]
            if covers < coverage.LEAST[0.95, 8] - 0.03:
                short.add(case.name)
    assert {"lognormal, σ = 1", "0.9", "0.95", "0.98"} <= short


def test_the_published_coverage_table_meets_its_targets(coverage, cases):
    found = json.loads((BENCH / "coverage.json").read_text())
    assert found["trials"] == coverage.TRIALS
    names = {(case.kind, case.name) for case in cases}
    assert {(row["kind"], row["name"]) for row in found["rows"]} == names
    assert len(found["rows"]) == len(names) * len(coverage.SIZES) * len(coverage.LEVELS)
    for row in found["rows"]:
        assert row["short"] or row["covers"] >= coverage.LEAST.get((row["level"], row["n"]), 0), row
        assert row["absent"] < 0.01, row  # nothing is hidden in intervals that are not there


def test_values_in_a_tenth_of_the_range_cover_a_truth_with_rare_low_ones(coverage, cases):
    """Most samples of 20 hold no low value or one; they must not pass for values that never are low."""
    (case,) = (c for c in cases if (c.kind, c.name) == ("bounded", "6 % low, the rest .9 ± .05"))
    for n in (20, 40):
        (values,) = case.draw(np.random.default_rng(n), n, 500)
        for level, least in ((0.95, 0.93), (0.995, 0.985)):
            found = coverage.covered(case.interval(values, level=level), case.truth)
            assert found["covers"] >= least


# Shares


@pytest.mark.parametrize("level", [0.95, 0.995])
def test_shares_have_clopper_and_pearsons_interval(level):
    for n, k in ((24, 24), (24, 0), (8, 7), (20, 11)):
        exact = stats.binomtest(k, n).proportion_ci(level, "exact")
        found = intervals.share(k, n, level=level)
        np.testing.assert_allclose(found, (k / n, exact.low, exact.high), atol=1e-12)
        values = np.repeat([1.0, 0.0], [k, n - k])
        np.testing.assert_allclose(intervals.mean(values, level=level, bounds=(0, 1)), found)
        if 0 < k < n:  # both are there: without bounds too
            np.testing.assert_allclose(intervals.mean(values, level=level), found)


def test_a_share_covers_at_every_p():
    """Not in simulation: summed over all outcomes."""
    p = np.linspace(0.01, 0.99, 99)[:, None]
    for n in (2, 8, 20, 40):
        k = np.arange(n + 1)
        _, low, high = intervals.share(k, n)
        covers = (stats.binom.pmf(k, n, p) * ((low <= p) & (p <= high))).sum(1)
        assert covers.min() >= 0.95


def test_intervals_between_bounds_have_width_and_stay_inside():
    ones = np.ones(24)
    assert intervals.mean(ones, bounds=(0, 1))[1] == pytest.approx(0.858, abs=1e-3)
    assert np.isnan(intervals.mean(ones)[1:]).all()  # not known to be a share
    almost = np.append(np.ones(21), [0.5, 0.6, 0.9])
    value, low, high = intervals.mean(almost, bounds=(0, 1))
    assert low < 0.8 < value < high <= 1
    spread = np.append(np.linspace(0.9, 1, 20), 0)  # enough off the end: its own spread counts
    assert intervals.mean(spread, bounds=(0, 1))[2] < 1 < intervals.mean(spread)[2]
    assert intervals.mean(spread, bounds=(0, 1), smooth=True)[2] == 1
    assert intervals.mean(np.array([0.0, 0, 0, 1, 2, 30]), bounds=intervals.COUNTS)[1] == 0
    near, far = np.array([0.9, 1, 1, 0.95]), np.array([0, 0, 0.1, 0])
    assert intervals.independent(near, far, bounds=(0, 1))[2] <= 1
    assert np.isnan(intervals.mean(np.zeros(9), bounds=intervals.COUNTS)[1:]).all()
    value, low, high = intervals.mean(
        np.full(24, 0.3), bounds=(0, 1)
    )  # narrower than a share of 0.3
    share = intervals.share(0.3 * 24, 24)
    assert share[1] < low < value < high < share[2]
    with pytest.raises(fs.UsageError, match=r"from 0 to 1, got 1\.2"):
        intervals.mean(np.array([0.5, 1.2]), bounds=(0, 1))


# Differences of shares


def test_tangos_interval_as_published():
    """Airway hyper-responsiveness, 1 and 7 of 21 pairs discordant: Fagerland et al., Stat. Med. 2014."""
    ends = score_limits(*np.array([[1.0], [7.0], [21.0]]), 1.959964)
    np.testing.assert_allclose(np.ravel(ends), (-0.517, -0.026), atol=5e-4)


@pytest.mark.parametrize(
    ("b", "c", "n"), [(1, 7, 21), (0, 0, 20), (3, 0, 8), (5, 5, 40), (8, 0, 8)]
)
def test_tangos_interval_by_brute_force(b, c, n):
    """Every difference whose score is within the quantile, the likeliest nuisance found by search."""
    quantile = stats.t.ppf(0.975, n - 1)

    def score(d):
        def unlikely(q):  # q: the second alone, q + d: the first alone
            cells = np.array([q + d, q, 1 - 2 * q - d])
            return -(np.array([b, c, n - b - c]) * np.log(np.maximum(cells, 1e-300))).sum()

        ends = (max(0, -d), (1 - d) / 2)
        q = optimize.minimize_scalar(unlikely, bounds=ends, options={"xatol": 1e-12}).x
        if unlikely(ends[0]) <= unlikely(q):
            q = ends[0]
        return (b - c - n * d) / np.sqrt(max(n * (2 * q + d - d * d), 1e-30))

    def end(target, outer):
        inner = (b - c) / n
        if abs(outer - inner) < 1e-6:
            return outer
        return optimize.brentq(lambda d: score(d) - target, inner, outer, xtol=1e-6)

    _, low, high = paired_shares(b, c, n)
    assert low == pytest.approx(end(quantile, -1 + 1e-9), abs=1e-4)
    assert high == pytest.approx(end(-quantile, 1 - 1e-9), abs=1e-4)


def test_a_difference_of_answers_is_paired_and_never_of_width_zero():
    a, b = np.repeat([1.0, 0.0], [15, 5]), np.repeat([1.0, 0.0], [10, 10])
    np.testing.assert_allclose(intervals.difference(a, b), paired_shares(5, 0, 20))
    _, low, high = intervals.difference(a, a)
    assert low < 0 < high and high - low > 0.2
    np.testing.assert_allclose(intervals.mean(a - a, bounds=(-1, 1))[1:], (low, high))
    # The same gaps, not known to be of shares and all alike: nothing to tell from.
    assert np.isnan(intervals.difference(a + 2, a + 2)[1:]).all()


# Means


def test_interval_of_a_mean_is_students_and_wider_to_the_skewed_side():
    even = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 7.0, -7.0])
    ends = stats.t.interval(0.95, 6, even.mean(), stats.sem(even))
    np.testing.assert_allclose(intervals.mean(even)[1:], ends)
    skewed = np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 6.0])
    value, low, high = intervals.mean(skewed)
    plain = stats.t.interval(0.95, 6, value, stats.sem(skewed))
    assert low == pytest.approx(plain[0]) and high > plain[1] + 0.5


def test_halls_transformation_is_inverted():
    """The upper end, put into the published formula, gives the quantile."""
    x = np.random.default_rng(0).lognormal(size=(12, 1))
    (value,), _, (high,) = student(x, 0.95)
    n = len(x)
    gamma = stats.skew(x[:, 0], bias=False) * (1 + 8.5 / n) / np.sqrt(n)
    t = (value - high) / stats.sem(x[:, 0])
    bent = t + gamma * t**2 / 3 + gamma**2 * t**3 / 27 + gamma / 6
    assert bent == pytest.approx(-stats.t.ppf(0.975, n - 1))


def test_intervals_of_a_cell_do_not_depend_on_other_cells():
    rng = np.random.default_rng(0)
    columns = [
        rng.normal(size=30),
        (rng.random(30) < 0.3) * 1.0,
        rng.integers(-1, 2, 30) * 1.0,
        np.full(30, 2.5),
        np.where(rng.random(30) < 0.5, np.nan, rng.lognormal(size=30)),
        np.full(30, np.nan),
        np.append(1.0, np.full(29, np.nan)),
    ]
    together = intervals.mean(np.stack(columns, 1).reshape(30, 7, 1))
    assert together[0].shape == (7, 1)
    for i, column in enumerate(columns):
        alone = intervals.mean(column[~np.isnan(column)])
        np.testing.assert_allclose([x[i, 0] for x in together], np.ravel(alone))
    assert np.isnan(together[1][[3, 5, 6]]).all() and np.isnan(together[2][[3, 5, 6]]).all()


def test_higher_levels_are_wider():
    rng = np.random.default_rng(1)
    x, y, z = rng.lognormal(size=20), rng.lognormal(size=20), (rng.random(20) < 0.8) * 1.0
    labels = rng.choice(3, 60, p=[0.8, 0.1, 0.1])
    for interval in (
        lambda level: intervals.mean(x, level=level),
        lambda level: intervals.mean(z, bounds=(0, 1), level=level),
        lambda level: intervals.difference(z, 1 - z, level=level),
        lambda level: intervals.independent(x, y, level=level),
        lambda level: intervals.ratio(x, y, level=level),
        lambda level: intervals.entropy(labels, 3, level=level),
    ):
        for (_, low, high), (_, lower, higher) in pairwise(map(interval, (0.8, 0.95, 0.995))):
            assert lower < low and high < higher


def test_thousands_of_cells_take_no_time():
    """The bootstrap that was here took 0.27 s for these."""
    values = np.random.default_rng(0).random((24, 4000))
    intervals.mean(values)
    start = time.process_time()
    intervals.mean(values)
    assert time.process_time() - start < 0.25


def test_each_cluster_counts_once():
    rng = np.random.default_rng(0)
    centre = rng.normal(size=9)
    values = np.repeat(centre, 4) + np.tile([-0.1, 0.1, -0.2, 0.2], 9)
    ids = np.repeat(list("abcdefghi"), 4)
    np.testing.assert_allclose(intervals.mean(values, clusters=ids), intervals.mean(centre))
    # A seed with one template of six examples and one of two: templates count alike in it.
    seeds, templates = [1] * 8 + [2] * 2, ["x"] * 6 + ["y"] * 2 + ["x", "y"]
    some = np.array([1.0] * 6 + [3.0] * 2 + [5.0, 7.0])
    value, low, high = intervals.hierarchical(some, [seeds, templates])
    np.testing.assert_allclose((value, low, high), intervals.mean(np.array([2.0, 6.0])))
    with pytest.raises(fs.UsageError, match="an id for each of 10 examples, got 9"):
        intervals.hierarchical(some, [seeds[:9]])


# Ratios, two samples


def test_a_ratio_has_no_interval_if_a_mean_may_be_zero_or_nothing_varies():
    a, b = np.array([2.0, 4.0, 6.0, 5.0]), np.array([1.0, 2.0, 3.0, 2.4])
    value, low, high = intervals.ratio(a, b)
    assert value == pytest.approx(17 / 8.4) and low < value < high
    _, low_b, high_b = intervals.ratio(b, a)  # turned over, so are the ends
    np.testing.assert_allclose((1 / high_b, 1 / low_b), (low, high))
    assert np.isnan(intervals.ratio(a - 4, b)[1:]).all()  # a mean that could be on either side of 0
    assert np.isnan(intervals.ratio(2 * b, b)[1:]).all()  # no variation at all


def test_intervals_of_independent_samples_are_near_welchs():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 60), rng.normal(0, 2, 80)
    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(intervals.independent(a, b)[1:], welch, atol=0.08)
    assert np.isnan(intervals.independent(a[:1], b)[1:]).all()


# Entropies


def test_entropy_is_miller_and_madows_with_a_jackknife():
    """By the definitions, example by example."""
    rng = np.random.default_rng(0)
    labels, bins = np.append(rng.choice(6, 19, p=[0.5, 0.3, 0.1, 0.05, 0.04, 0.01]), range(6)), 6

    def estimate(x):
        p = np.bincount(x) / len(x)
        p = p[p > 0]
        return (-(p * np.log(p)).sum() + (len(p) - 1) / (2 * len(x))) / np.log(bins)

    out = np.array([estimate(np.delete(labels, i)) for i in range(25)])
    error = np.sqrt(24 / 25 * ((out - out.mean()) ** 2).sum())
    half = stats.t.ppf(0.975, 24) * np.hypot(error, np.sqrt(5 / 2) / 25 / np.log(bins))
    value, low, high = intervals.entropy(labels, bins)
    assert set(labels) == set(range(6))  # no bin was missed, so nothing is added above
    assert value == pytest.approx(estimate(labels))
    assert (low, high) == (pytest.approx(value - half), pytest.approx(min(1, value + half)))


def test_entropy_of_one_place_says_what_may_have_been_missed():
    value, low, high = intervals.entropy(np.zeros(24, int), 10)
    share = 1 - 0.025 ** (1 / 24)  # places never met can hold as much
    spread = np.append(1 - share, np.full(9, share / 9))
    assert value == low == 0
    # Joined by the spread that remains where all bins are alike.
    rest = stats.t.ppf(0.975, 23) * np.sqrt(9 / 2) / 24
    assert high == pytest.approx(np.hypot(stats.entropy(spread), rest) / np.log(10))


def test_entropies_of_layers_together_and_of_two_models():
    rng = np.random.default_rng(0)
    one = rng.integers(0, 10, (30, 1))
    same = np.repeat(one, 4, axis=1)  # four layers that say the same count once
    for a, b in zip(
        intervals.entropy(same, 10, average=True), intervals.entropy(one, 10), strict=True
    ):
        assert a.shape == () and a == pytest.approx(b[0])
    own = rng.integers(0, 10, (30, 4))
    _, low, high = intervals.entropy(own, 10, average=True)
    each = intervals.entropy(own, 10)
    assert high - low < (each[2] - each[1]).mean()
    fixed = np.zeros((30, 2), int)
    value, low, high = intervals.entropy_difference(own, fixed, 10, average=True)
    assert 0.4 < low < value < high <= 1
    assert intervals.entropy_difference(own, own, 10)[0] == pytest.approx(0)
    absent = np.where(np.arange(30)[:, None] < 10, -1, own)
    some = intervals.entropy(absent, 10)
    for a, b in zip(some, intervals.entropy(own[10:], 10), strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)  # the absent are no examples
    np.testing.assert_allclose(some[0], intervals.entropy(own[10:], 10)[0])
    with pytest.raises(fs.UsageError, match="below 10 bins, got 12"):
        intervals.entropy(np.array([1, 12]), 10)


# Pairs and plans


def test_values_are_paired_by_id():
    ids, a, b = intervals.paired_by_id({"x": 1, "y": 2, "z": 3}, {"z": 30, "w": 0, "x": 10})
    assert ids == ["x", "z"] and a.tolist() == [1, 3] and b.tolist() == [10, 30]
    with pytest.raises(fs.UsageError, match="'b' occurs 2 times in list 2"):
        intervals.pair(["a", "b"], ["b", "b"])
    with pytest.raises(fs.UsageError, match="of 1 and 2 no id occurs in all lists"):
        intervals.pair(["a"], ["b", "c"])


def sample_of(values, level=0.95, bounds=None):
    return intervals.Sample(values, partial(intervals.mean, level=level, bounds=bounds))


def test_as_many_as_needed_decide_as_often_as_promised():
    """The plan from 40 examples of mean 0.2 and deviation 1; then the power at that number."""
    values = stats.norm.ppf((np.arange(40) + 0.5) / 40)
    values = 0.2 + values / values.std()
    n = intervals.needed(sample_of(values), 0.0)
    assert n == pytest.approx(196, rel=0.15)  # (1.96 + 0.84)² σ² / effect²
    _, low, high = intervals.mean(np.random.default_rng(1).normal(0.2, 1, (n, 2000)))
    assert ((low > 0) | (high < 0)).mean() == pytest.approx(0.8, abs=0.06)
    assert intervals.needed(sample_of(values, 0.995), 0.0) == pytest.approx(333, rel=0.15)
    assert intervals.needed(sample_of(values), 0.0) == n  # nothing is left to chance


def test_examples_needed_are_none_where_no_number_would_do():
    values = np.tile([-1.0, 1.0], 10) * 0.5
    assert intervals.needed(sample_of(values + 0.001), 0.0) is None  # more than 10,000
    assert intervals.needed(sample_of(np.array([1.0, np.nan])), 0.0) is None  # one example
    assert intervals.needed(sample_of(np.ones(9)), 0.0) is None  # no interval at any number


def test_examples_needed_do_not_come_from_a_clipped_interval():
    """Two shares whose interval is [0, 1] say nothing about a deviation: a handful is no answer."""
    values = np.array([0.0, 0.424])
    _, low, high = intervals.mean(values, level=0.995, bounds=(0, 1))
    assert high - low > 0.9
    assert intervals.needed(sample_of(values, 0.995, (0, 1)), 0.2) > 500
    alike = intervals.needed(sample_of(np.full(20, 0.99), bounds=(0, 1)), 0.95)
    _, low, _ = intervals.mean(np.full(alike, 0.99), bounds=(0, 1))
    assert low > 0.95 >= intervals.mean(np.full(alike - 1, 0.99), bounds=(0, 1))[1]


# Bets


def test_betting_interval_by_brute_force():
    """The means against which no capital doubles often enough, on a grid, bet by bet."""
    y = np.random.default_rng(3).beta(2, 0.4, 12)
    unit = np.sqrt(2 * np.log(40) / 12)
    bets = [min(unit * bet, 0.99) for bet in (0.25, 0.5, 1, 2, 4, 8)]

    def capital(values, m):
        return np.mean([np.prod([1 + bet * (v / m - 1) for v in values]) for bet in bets])

    grid = np.linspace(0.001, 0.999, 999)
    kept = [m for m in grid if capital(y, m) < 40 and capital(1 - y, 1 - m) < 40]
    value, low, high = intervals.bounded(y[:, None], (0, 1))
    assert value == pytest.approx(y.mean())
    assert low == pytest.approx(kept[0], abs=1.1e-3) and high == pytest.approx(kept[-1], abs=1.1e-3)


def test_betting_interval_keeps_order_range_and_absent_examples_out():
    rng = np.random.default_rng(0)
    y = np.stack([rng.beta(0.5, 0.05, 30), np.full(30, 0.3), np.zeros(30), np.ones(30)], 1)
    found = intervals.bounded(y, (0, 1), 0.995)
    np.testing.assert_allclose(intervals.bounded(rng.permutation(y), (0, 1), 0.995), found)
    np.testing.assert_allclose(
        intervals.bounded(4 * y - 1, (-1, 3), 0.995), 4 * np.array(found) - 1
    )
    more = np.concatenate([y, np.full((5, 4), np.nan)])
    np.testing.assert_allclose(intervals.bounded(more, (0, 1), 0.995), found)
    value, low, high = found
    assert (low >= 0).all() and (low <= value).all() and (value <= high).all() and (high <= 1).all()
    assert (high - low > 0.1).all()  # also of values that are all alike
    assert np.isnan(intervals.bounded(np.full((3, 1), np.nan), (0, 1))).all()


def test_betting_covers_whatever_lies_between_the_bounds():
    """Summed over all outcomes: of 20 examples, k are low; the least favourable of many mixtures."""
    n, k = 20, np.arange(21)
    for rest in (1.0, 0.995, 0.6):
        for low in (0.0, 0.3):
            outcomes = np.where(np.arange(n)[:, None] < k, low, rest)
            for level in (0.95, 0.995):
                _, bottom, top = intervals.bounded(outcomes, (0, 1), level)
                for p in (0.01, 0.03, 0.06, 0.1, 0.2, 0.5):
                    truth = p * low + (1 - p) * rest
                    inside = (bottom <= truth + 1e-12) & (truth <= top + 1e-12)
                    assert (stats.binom.pmf(k, n, p) * inside).sum() >= level


# Ranges and clusters of what is measured


def test_interval_of_a_count_stays_in_its_range():
    """By unit, and by the largest possible value where a measure names it."""
    counts = [0.0, 0, 0, 1, 0, 9, 0, 0]
    lives = [32.0, 32, 32, 31, 2, 32, 32, 32]
    examples = [
        xr.Dataset({"anchors": x, "lifetime": y, "depth": x - 9}, attrs={"most": {"lifetime": 32}})
        for x, y in zip(counts, lives, strict=True)
    ]
    units = {"anchors": "keys", "lifetime": "states", "depth": "nats"}
    result = summarise(examples, None, "model", units)
    assert intervals.mean(np.array(counts))[1] < 0 == result["anchors_low"]
    assert intervals.mean(np.array(lives))[2] > 32 >= result["lifetime_high"]
    assert result["depth_low"] < 0  # negative values: a unit alone bounds nothing
    for name, most in (("anchors", np.inf), ("lifetime", 32)):
        found = overall(result, name, name)
        assert 0 <= found.low < found.value < found.high <= most


# Several control networks


def test_beyond_controls_is_the_two_way_formula():
    """Against its definition: symmetric gaps, so that no skewness is corrected."""
    rng = np.random.default_rng(3)
    half = rng.normal(size=(6, 12))
    both = np.concatenate([half, -half], axis=1) + rng.normal(size=(6, 1))
    trained, controls = both[0], both[1:]
    n, k = 24, 5
    gaps = trained - controls.mean(0)
    own, between = gaps.var(ddof=1) / n, controls.mean(1).var(ddof=1)
    for fixed, share in ((False, 1 + 1 / k), (True, 1 / k)):
        total = own + share * between
        free = total**2 / (own**2 / (n - 1) + (share * between) ** 2 / (k - 1))
        reach = stats.t.ppf(0.975, np.floor(free)) * np.sqrt(total)
        value, low, high = intervals.beyond_controls(trained, controls, fixed=fixed)
        np.testing.assert_allclose([low, value, high], gaps.mean() + reach * np.array([-1, 0, 1]))


def test_beyond_controls_without_variance_between_networks_is_a_paired_difference():
    trained, control = np.random.default_rng(0).lognormal(size=(2, 20))
    several = np.tile(control, (5, 1))
    found = intervals.beyond_controls(trained, several)
    np.testing.assert_allclose(found, intervals.difference(trained, control))


def test_beyond_controls_has_no_interval_with_one_control_or_nothing_that_varies():
    trained, control = np.random.default_rng(0).normal(size=(2, 20))
    for one, others in ((trained, control[None]), (np.ones(20), np.zeros((5, 20)))):
        value, low, high = intervals.beyond_controls(one, others)
        assert value == pytest.approx(np.mean(one) - np.mean(others))
        assert np.isnan(low) and np.isnan(high)
    _, low, high = intervals.beyond_controls(np.ones(20), np.zeros((5, 20)), bounds=(0, 1))
    assert 0.5 < low < 1 and high == 1


def test_beyond_controls_ignores_nan():
    rng = np.random.default_rng(0)
    trained, controls = rng.normal(size=20), rng.normal(size=(5, 20))
    without = intervals.beyond_controls(trained[1:], controls[:, 1:])
    trained[0] = np.nan
    np.testing.assert_array_equal(intervals.beyond_controls(trained, controls), without)
    six = np.concatenate([controls, np.full((1, 20), np.nan)])  # a network without any value
    np.testing.assert_array_equal(intervals.beyond_controls(trained, six), without)
