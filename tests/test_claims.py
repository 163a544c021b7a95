"""Verdicts: the rule that decides, and claims about attention where the truth was planted."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from floatscope.errors import UsageError
from floatscope.measures import MaskedRows
from floatscope.measures.result import Result, summarise
from floatscope.studies import STUDIES, request_of
from floatscope.studies.anchored import jackknife, moves, together
from floatscope.studies.claim import VERDICTS, Number
from floatscope.studies.verdict import (
    CAUSAL,
    FAMILIES,
    LEVEL,
    LITERATURE,
    TOGETHER,
    Rule,
    judge,
    other_deltas,
    outcome,
    power,
    vary,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from verdict_parts.attention import FALSE, NOISE, TRUE, Planted, _steps, draw

RULE = Rule(1, "Water is wet", "wetness", delta=2.0, unit="×", holds="Wet.", refuted="Dry.")


def theta(low, high, n=20):
    return Number("θ", (low + high) / 2, low, high, None, "×", n, LEVEL)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (2.1, 3.0, "holds"),
        (1.0, 1.9, "refuted"),
        (1.9, 2.1, "undecided"),
        (2.0, 3.0, "undecided"),  # it touches δ
        (3.0, 3.0, "undecided"),  # an interval of no width decides nothing
        (math.nan, math.nan, "undecided"),
    ],
)
def test_the_whole_interval_decides(low, high, verdict):
    assert outcome(RULE, theta(low, high))[0] == verdict
    below = Rule(1, "x", "x", delta=-2.0, more=False)
    assert outcome(below, theta(-high, -low))[0] == verdict


def test_a_straddling_interval_is_no_refutation_and_says_what_would_decide():
    verdict, why = outcome(RULE, theta(1.5, 3.5))
    assert verdict == "undecided" and "examples would decide (power 80 %)" in why
    # Twice as far from δ, a quarter of the examples.
    near, far = (
        int(power(theta(c - 1, c + 1, 100), 2.0).split()[1].replace(",", "")) for c in (2.2, 2.4)
    )
    assert near / far == pytest.approx(4, rel=0.05)
    assert "More than 10,000" in power(theta(1.0, 3.0), 2.0)


def test_what_untrained_weights_earn_is_no_finding():
    asks = Rule(1, "x", "x", delta=2.0, untrained=True)
    assert outcome(asks, theta(3, 4), theta(1, 1.5))[0] == "holds"
    verdict, why = outcome(asks, theta(3, 4), theta(2.5, 3.5))
    assert verdict == "undecided" and "untrained weights earn as much" in why
    verdict, why = outcome(asks, theta(3, 4))
    assert verdict == "not testable" and "--controls" in why
    assert outcome(asks, theta(1, 1.5), theta(2.5, 3.5))[0] == "refuted"


def test_a_bar_comes_before_all_numbers():
    claim = judge(RULE, "study", theta(3, 4), bar="At the ceiling: ask harder questions.")
    assert claim.verdict == "not testable" and claim.why.startswith("At the ceiling")
    assert claim.plain == "Not tested: whether water is wet."
    assert judge(RULE, "study", None).verdict == "not testable"
    assert judge(RULE, "study", theta(3, 4)).plain == "Wet."
    assert judge(RULE, "study", theta(0, 1)).plain == "Dry."
    assert "cannot tell whether water is wet" in judge(RULE, "study", theta(1, 4)).plain


def test_other_choices_are_judged_by_the_same_rule():
    half, twice = other_deltas(RULE, theta(2.1, 2.9))
    assert (half.choice, half.verdict) == ("δ = 1.50×", "holds")
    assert (twice.choice, twice.verdict) == ("δ = 3.00×", "refuted")
    assert vary("another", RULE, None).verdict == "not testable"


def test_every_claim_is_put_before_the_run():
    rules = [rule for name in STUDIES.own for rule in STUDIES[name].rules]
    by_family = {name: [r.number for r in rules if r.family == name] for name in FAMILIES}
    assert by_family == {LITERATURE: [*range(1, 11)], CAUSAL: [11, 12, 13]}
    assert all(len(by_family[name]) == size for name, size in FAMILIES.items())
    assert (LEVEL, TOGETHER) == (0.995, 10) and len(rules) == 13
    for rule in rules:
        assert (
            rule.quantity in rule.words()
            and rule.holds.endswith(".")
            and rule.refuted.endswith(".")
        )
        assert not any(c.isdigit() for c in rule.holds + rule.refuted)  # plain words


def test_each_family_is_right_together():
    """More questions of another kind leave the literature's claims, and their words, as they were."""
    asks = Rule(99, "x", "x", delta=2.0, family=CAUSAL)
    assert "the 98.3% interval" in asks.words() and "the 99.5% interval" in RULE.words()
    assert asks.level == pytest.approx(1 - 0.05 / 3) and RULE.level == LEVEL
    near = Number("θ", 2.2, 1.9, 2.5, None, "×", 40, asks.level)
    assert outcome(asks, near)[1] != outcome(replace(asks, family=LITERATURE), near)[1]  # the power


def test_moves_count_only_places_that_have_an_anchor():
    nan = np.nan
    place = np.array([[1, 1, 2, nan, 2], [nan, nan, nan, nan, 3], [1, 2, 3, 4, 5.0]])
    np.testing.assert_allclose(moves(place, 1), [1 / 3, nan, 1.0])


def test_the_jackknife_of_a_mean_is_the_mean():
    values = np.random.default_rng(0).normal(size=12)
    names = [str(i) for i in range(12)]
    found = jackknife(lambda kept: values[kept].mean(), names, "mean", "", 0.95)
    assert found.value == pytest.approx(values.mean()) and found.low < found.value < found.high
    # A prompt traced under two controls is one prompt: twice the lines say no more.
    both = np.concatenate([values, values])
    twice = jackknife(lambda kept: both[kept].mean(), [*names, *names], "mean", "", 0.95)
    assert (twice.n, twice.low, twice.high) == (12, *map(pytest.approx, (found.low, found.high)))


def test_two_prompts_of_one_name_are_not_paired():
    import xarray as xr

    each = [xr.Dataset({"x": 1.0}), xr.Dataset({"x": 2.0})]
    made = summarise(each, None, "m", {})
    twice = Result(made.data, None, made.examples.assign_coords(example=["a", "a"]), "m")
    with pytest.raises(UsageError, match="every id once"):
        together(twice, twice)


@pytest.mark.parametrize("number", range(1, 7))
def test_the_planted_truth_is_found(number):
    rng = np.random.default_rng(number)
    yes = draw(number, TRUE, rng, n=24, size=24)
    no = draw(number, FALSE, rng, n=24, size=24)
    assert (yes.verdict, no.verdict) == ("holds", "refuted"), (yes.why, no.why)
    assert {v.verdict for v in yes.variants} <= {*VERDICTS}


@pytest.mark.parametrize("number", [1, 2, 4, 5, 6])
def test_noise_wins_nothing(number):
    """Models that are as untrained as their controls: by the rules before, claims 1, 4 and 5 held."""
    claim = draw(number, NOISE, np.random.default_rng(number), n=12, size=12)
    assert claim.verdict in ("refuted", "undecided", "not testable"), claim.why
    assert number not in (2, 4) or claim.verdict == "not testable"  # no anchor to speak of


def test_steps_of_short_answers_say_nothing():
    """Five steps of end tokens were taken for movement."""
    short = MaskedRows()(
        [_steps(True, np.random.default_rng(0), True, answer=10) for _ in range(4)]
    )
    named = short.examples.assign_coords(example=list("abcd"))
    made = {("masked-rows", "mdm"): Result(short.data, short.measure, named, "mdm", short.values)}
    request = request_of({"studies": ["floating"], "models": ["a"]})
    claim = STUDIES["floating"].claims(Planted(made, request))[2]
    assert claim.verdict == "not testable" and "it takes 48" in claim.why


def test_markup_that_hurts_no_more_than_its_neighbours_is_ticked_off_and_does_not_decide(
    monkeypatch,
):
    none = Number("apart", 0.0, -0.1, 0.1, 0.0, "points", 40)
    monkeypatch.setattr(Planted, "apart", lambda *args, **kwargs: none)
    claim = draw(6, TRUE, np.random.default_rng(6), n=24, size=24)
    assert claim.verdict == "holds"
    assert [check.passed for check in claim.checks] == [True, False, False]
