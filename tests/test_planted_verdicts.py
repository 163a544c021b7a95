"""Claims whose truth was planted: the verdict is right, and never "holds" where the claim is false.

`bench/verdicts.py` counts over more draws; here are a few, from the same planting.
"""

from pathlib import Path

import numpy as np
import pytest

from floatscope.studies.claim import format_value
from floatscope.studies.library import STUDIES
from floatscope.studies.verdict import other_deltas

BENCH = Path(__file__).parent.parent / "bench"
OURS = ("9a", "9b", "9c", "10a", "10b", "11", "12", "13")
NUMBERS = ("7", "8", *OURS)


@pytest.fixture
def verdicts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import verdicts

    return verdicts


@pytest.mark.parametrize("number", NUMBERS)
def test_a_planted_truth_is_found(verdicts, number):
    rng = np.random.default_rng([*number.encode()])
    assert {verdicts.planted(number, True, rng) for _ in range(2)} == {"holds"}
    assert {verdicts.planted(number, False, rng) for _ in range(2)} == {"refuted"}


@pytest.mark.parametrize("number", OURS)
def test_a_claim_says_all_that_a_reader_needs(verdicts, number):
    plant, n = verdicts.PLANTED[number]
    claim = plant(True, np.random.default_rng(0), n)
    theta, *others = claim.numbers
    (rule,) = [rule for rule in STUDIES[claim.study].rules if rule.number == number]
    assert claim.number == number and theta.level == rule.level and theta.n == n
    assert not any(c.isdigit() for c in claim.plain) and claim.sentence.endswith(".")
    assert all(number.n for number in others)
    assert format_value(rule.delta, rule.unit) in claim.rule
    assert {v.choice for v in claim.variants} >= {v.choice for v in other_deltas(rule, theta)}
    assert all(v.verdict != "not testable" for v in claim.variants)


@pytest.mark.parametrize("number", ["8", "9a", "9b", "9c", "10b", "11", "13"])
def test_a_claim_without_an_effect_never_holds(verdicts, number):
    """Anchors that both models need alike, a random order, samplers that answer alike, values that untrained
    weights drain as well, heads that are one more set of their kind, one more untrained network."""
    plant, n = verdicts.PLANTED[number]
    rng = np.random.default_rng([*number.encode()])
    assert "holds" not in {plant("equal", rng, n).verdict for _ in range(3)}


def test_a_ceiling_makes_claim_9c_not_testable(verdicts):
    from verdict_parts.evidence import MDM
    from verdict_parts.order import evidence_of

    evidence = evidence_of("true", np.random.default_rng(1), 40)
    evidence._answers["sampler-confidence", MDM]["contains"][:] = 1.0
    *_, repair = STUDIES["decoding"].claims(evidence)
    assert repair.verdict == "not testable" and "ask harder questions" in repair.why


def test_claims_that_are_not_testable_name_a_remedy(verdicts):
    from verdict_parts.evidence import ARM
    from verdict_parts.order import evidence_of

    study, evidence = STUDIES["decoding"], evidence_of("true", np.random.default_rng(2), 24)
    ends, frequent, _ = study.claims(evidence)
    assert ends.verdict == "not testable" and "0 of 24 answers have 48 content tokens" in ends.why
    assert "test it with --data long:continuation --length 64" in ends.why
    assert frequent.verdict != "not testable"  # three to ten content tokens have a first quarter
    evidence.request = evidence.request.model_copy(update={"frequencies": None})
    for claim in study.claims(evidence)[1:]:
        assert claim.verdict == "not testable" and "decoding.frequencies" in claim.why
    evidence.models = {ARM: {"direction": "causal"}}
    for name in ("decoding", "dormancy", "structure"):
        for claim in STUDIES[name].claims(evidence):
            assert claim.verdict == "not testable" and claim.why.endswith("--model.")


def test_only_samplers_that_decide_are_asked(verdicts):
    from floatscope.studies import request_of

    study, fields = STUDIES["decoding"], {"studies": ["decoding"], "models": ["pair/mdm"]}
    asked = study.settings(request_of(fields))
    assert [s.sampler for s in asked] == ["confidence", "position-calibrated"]
    assert all(s.decides and not s.early_stop for s in asked)
    # Nothing is right or wrong in a continuation, so calibration has nothing to win.
    asked = study.settings(request_of({**fields, "data": "long:continuation"}))
    assert [s.sampler for s in asked] == ["confidence"]


def test_no_head_that_only_differs_makes_claim_10a_hold(verdicts):
    """Most heads differ between the domains there; once each of them counted as switching."""
    plant, n = verdicts.PLANTED["10a"]
    claim = plant(False, np.random.default_rng(3), n)
    differ = [x for x in claim.numbers if "differ without crossing" in x.label]
    assert len(differ) == 2 and all(x.value > 0.5 for x in differ)
    assert claim.numbers[0].value < 0.02 and claim.verdict == "refuted"
