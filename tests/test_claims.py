"""Verdicts: the rule that decides, and claims about attention where the truth was planted."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from floatscope.errors import UsageError
from floatscope.measures.library.kinds import advantage
from floatscope.measures.result import Result, summarise
from floatscope.report import page
from floatscope.stats.groups import groups
from floatscope.studies import STUDIES
from floatscope.studies.anchored import align_prompts, count_moves
from floatscope.studies.claim import VERDICTS, Number, as_json
from floatscope.studies.findings import _order
from floatscope.studies.library.geometry import _by_kind, _control, _networks, leave_one_out
from floatscope.studies.numbers import number
from floatscope.studies.study import Study
from floatscope.studies.verdict import (
    CAUSAL,
    LITERATURE,
    Rule,
    claims_together,
    judge,
    level_of,
    other_deltas,
    outcome,
    power,
    vary,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from verdict_parts.attention import EQUAL, FALSE, NOISE, TRUE, draw, pool

RULE = Rule("1", "Water is wet", "wetness", delta=2.0, unit="×", holds="Wet.", refuted="Dry.")


def theta(low, high, n=20):
    return Number("θ", (low + high) / 2, low, high, None, "×", n, RULE.level)


def measured(value, n=40, level=1 - 0.05 / 14):
    """θ of examples with this mean and a standard deviation of 1."""
    spread = np.linspace(-1, 1, n)
    found = number(value + spread / spread.std(), "θ", "×", level=level)
    assert found is not None
    return found


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
    below = Rule("1", "x", "x", delta=-2.0, above=False)
    assert outcome(below, theta(-high, -low))[0] == verdict


def test_an_interval_around_delta_is_undecided_and_names_the_needed_examples():
    verdict, why = outcome(RULE, measured(2.2))
    assert verdict == "undecided" and "examples would decide (power 80 %)" in why
    # Twice as far from δ, a quarter of the examples.
    near, far = (int(power(measured(c), 2.0).split()[1].replace(",", "")) for c in (2.2, 2.4))
    assert near / far == pytest.approx(4, rel=0.2)
    assert "More than 10,000" in power(measured(2.0), 2.0)
    # An interval alone, without the examples that it comes from, says no number.
    assert outcome(RULE, theta(1.5, 3.5))[1].endswith("More examples may decide.")


def test_samples_stay_out_of_written_summaries():
    claim = judge(RULE, "study", measured(2.2), variants=(vary("x", RULE, measured(3.0)),))
    written = json.dumps(as_json(claim))
    assert "sample" not in written and '"level": 0.996' in written


def test_an_effect_within_that_of_untrained_weights_does_not_hold():
    asks = Rule("1", "x", "x", delta=2.0, untrained=True)
    assert outcome(asks, theta(3, 4), theta(1, 1.5))[0] == "holds"
    verdict, why = outcome(asks, theta(3, 4), theta(2.5, 3.5))
    assert verdict == "undecided" and "but not beyond untrained weights" in why
    verdict, why = outcome(asks, theta(3, 4))
    assert verdict == "not testable" and "--controls" in why
    assert outcome(asks, theta(1, 1.5), theta(2.5, 3.5))[0] == "refuted"


def test_a_bar_makes_a_claim_not_testable_whatever_its_numbers():
    claim = judge(RULE, "study", theta(3, 4), bar="At the ceiling: ask harder questions.")
    assert claim.verdict == "not testable" and claim.why.startswith("At the ceiling")
    assert claim.plain == "This run does not test whether water is wet."
    assert judge(RULE, "study", None).verdict == "not testable"
    assert judge(RULE, "study", theta(3, 4)).plain == "Wet."
    assert judge(RULE, "study", theta(0, 1)).plain == "Dry."
    assert "cannot tell whether water is wet" in judge(RULE, "study", theta(1, 4)).plain


def test_other_choices_are_judged_by_the_same_rule():
    half, twice = other_deltas(RULE, theta(2.1, 2.9))
    assert (half.choice, half.verdict) == ("δ = 1.50×", "holds")
    assert (twice.choice, twice.verdict) == ("δ = 3.00×", "refuted")
    assert vary("another", RULE, None).verdict == "not testable"


def test_every_claim_has_a_rule_before_the_run():
    rules = [rule for name in STUDIES.builtin for rule in STUDIES[name].rules]
    by_family = {
        name: sorted((r.number for r in rules if r.family == name), key=_order)
        for name in {r.family for r in rules}
    }
    numbers = ["1", "2", "3", "4", "5", "6a", "6b", "7", "8", "9a", "9b", "9c", "10a", "10b"]
    assert by_family == {LITERATURE: numbers, CAUSAL: ["11", "12", "13"]}
    assert all(len(by_family[name]) == claims_together(name) for name in by_family)
    assert RULE.level == 1 - 0.05 / 14 and len(rules) == 17
    for rule in rules:
        assert (
            rule.quantity in rule.words()
            and rule.holds.endswith(".")
            and rule.refuted.endswith(".")
        )
        assert not any(c.isdigit() for c in rule.holds + rule.refuted)  # plain words


@pytest.mark.parametrize(("layers", "delta"), [(2, 2), (20, 2), (21, 3), (30, 3), (32, 4)])
def test_delta_is_a_share_of_the_layers_where_that_is_more(layers, delta):
    rule = Rule("3", "x", "x", delta=2, unit="layers", count=True, of_layers=0.1)
    assert rule.for_layers(layers).delta == delta
    assert f"is {delta} layers or more" in rule.for_layers(layers).words()
    assert "δ = 2 layers, or 10 % of the layers if that is more. Holds:" in rule.words()
    assert "interval of θ is δ or more" in rule.words()
    assert RULE.for_layers(layers) == RULE


def test_levels_are_corrected_within_each_family():
    """More questions of another kind leave the literature's claims, and their words, as they were."""
    asks = Rule("99", "x", "x", delta=2.0, family=CAUSAL)
    assert "the 98.3% interval" in asks.words() and "the 99.6% interval" in RULE.words()
    assert asks.level == pytest.approx(1 - 0.05 / 3) and RULE.level == level_of(LITERATURE)
    needs = [power(measured(2.2, level=rule.level), 2.0) for rule in (asks, RULE)]
    assert needs[0] != needs[1]  # the stricter level takes more examples


def test_plugins_claims_are_judged_with_their_own_family(monkeypatch):
    monkeypatch.setattr(STUDIES, "_added", {})
    mine = [Rule(f"10{i}", "x", "x", delta=2.0, family="mine") for i in (1, 2, 3, 4)]
    literature = level_of(LITERATURE)
    assert mine[0].level == 0.95  # nobody declares it
    STUDIES.add(type("Mine", (Study,), {"name": "mine", "rules": (*mine[:2],)}))
    STUDIES.add(type("Ours", (Study,), {"name": "ours", "rules": (*mine[1:],)}))  # shares one
    assert claims_together("mine") == 4 and mine[0].level == 1 - 0.05 / 4
    assert "the 98.8% interval" in mine[0].words()
    assert level_of(LITERATURE) == literature and level_of(CAUSAL) == 1 - 0.05 / 3
    more = Rule("105", "x", "x", delta=2.0)  # of the literature, where it names no family
    STUDIES.add(type("Further", (Study,), {"name": "further", "rules": (more,)}))
    assert more.level == RULE.level == 1 - 0.05 / 15


def test_page_says_the_level_of_each_family(monkeypatch):
    monkeypatch.setattr(STUDIES, "_added", {})
    mine = Rule("101", "x", "x", delta=2.0, family="mine")
    STUDIES.add(type("Mine", (Study,), {"name": "mine", "rules": (mine,)}))
    asked = Rule("99", "x", "x", delta=2.0, family=CAUSAL)
    claims = [judge(rule, "study", None) for rule in (mine, asked, RULE, RULE)]
    expected = ["99.6 %", "for causal questions 98.3 %", "for claims of the family mine 95.0 %"]
    assert page._levels(claims) == ", ".join(expected)
    assert page._levels(claims[2:]) == "99.6 %"


def test_moves_count_only_places_that_have_an_anchor():
    nan = np.nan
    place = np.array([[1, 1, 2, nan, 2], [nan, nan, nan, nan, 3], [1, 2, 3, 4, 5.0]])
    np.testing.assert_allclose(count_moves(place, 1), [1 / 3, nan, 1.0])


def test_leaving_one_out_of_a_mean_gives_the_mean_and_its_error():
    values = np.random.default_rng(0).normal(size=12)
    without = (values.sum() - values) / 11
    np.testing.assert_allclose(leave_one_out(values.mean(), without), values)


def test_anchors_are_chosen_again_without_each_example():
    """A plain loop over groups and examples, by the definition of `advantage`."""
    rng = np.random.default_rng(3)
    shape, ids = (9, 2, 3, 4), [f"q{i}" for i in range(9)]
    lift, angle, norm = rng.lognormal(size=shape), *rng.normal(size=(2, *shape))
    lift[:4, ..., 1] = angle[:4, ..., 1] = norm[:4, ..., 1] = np.nan  # a kind that some do not have
    dims = ("example", "layer", "head", "kind")
    examples = xr.Dataset({"lift": (dims, lift), "angle": (dims, angle), "norm": (dims, norm)})
    whole, without = advantage(examples, ids, splits=3)

    def summed(left_out):
        total = np.zeros((2, 2, 3))
        for seed in range(3):
            for chosen in groups(ids, 4, seed):
                choosing = [i for i in chosen if i != left_out]
                best = np.nan_to_num(lift[choosing]).sum(0).argmax(-1)
                for i in set(range(9)) - {*chosen.tolist(), left_out}:
                    for layer, head in np.ndindex(2, 3):
                        kind = best[layer, head]
                        total[:, layer, head] += np.nan_to_num(
                            [part[i, layer, head, kind] for part in (angle, norm)]
                        )
        return total

    np.testing.assert_allclose(whole, summed(None))
    for i in range(9):
        np.testing.assert_allclose(without[:, i], summed(i))


def test_anchors_of_each_untrained_network_are_its_own():
    """Two networks whose heads have other anchors: chosen together, neither would have an advantage."""
    _, made = pool("5", FALSE, size=24)
    measure, each = made["kinds-same", "mdm", None]
    swapped = [one.assign_coords(kind=one["kind"].values[::-1]) for one in each]
    result = measure.summarise([*each, *swapped], "mdm")
    named = result.examples.assign_coords(example=[f"prompt {i % 24}" for i in range(48)])
    both = Result(result.data, measure, named, "mdm", result.values)
    alone = _control(next(_networks(both)), _by_kind)
    control = _control(both, _by_kind)
    assert [one.n for one in _networks(both)] == [24, 24]
    assert control.n == 24 and control.low <= alone.low < alone.high <= control.high


def test_two_prompts_of_one_name_are_not_paired():
    each = [xr.Dataset({"x": 1.0}), xr.Dataset({"x": 2.0})]
    made = summarise(each, None, "m", {})
    twice = Result(made.data, None, made.examples.assign_coords(example=["a", "a"]), "m")
    with pytest.raises(UsageError, match="ids must be unique"):
        align_prompts(twice, twice)


@pytest.mark.parametrize("number", ["1", "2", "4", "5", "6a", "6b"])
def test_the_planted_truth_is_found(number):
    rng = np.random.default_rng([*number.encode()])
    yes = draw(number, TRUE, rng, n=24, size=24)
    no = draw(number, FALSE, rng, n=24, size=24)
    assert (yes.verdict, no.verdict) == ("holds", "refuted"), (yes.why, no.why)
    assert {v.verdict for v in yes.variants} <= {*VERDICTS}


@pytest.mark.parametrize("number", ["1", "2", "4", "5", "6a", "6b"])
def test_no_claim_holds_for_untrained_models(number):
    """Models that are as untrained as their controls: by the rules before, claims 1, 4 and 5 held."""
    claim = draw(number, NOISE, np.random.default_rng([*number.encode()]), n=24, size=24)
    assert claim.verdict in ("refuted", "undecided", "not testable"), claim.why
    assert number not in ("2", "4") or claim.verdict == "not testable"  # no anchor to speak of


@pytest.mark.parametrize("truth", [EQUAL, NOISE])
def test_models_that_are_alike_do_not_differ(truth):
    assert draw("6b", truth, np.random.default_rng(0), n=24, size=24).verdict == "refuted"
