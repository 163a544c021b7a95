"""Claims whose truth was planted: the verdict is right, and never "holds" where the claim is false.

`bench/verdicts.py` counts over more draws; here are a few, from the same planting.
"""

from pathlib import Path

import numpy as np
import pytest

from floatscope.studies.claim import short
from floatscope.studies.library import STUDIES

BENCH = Path(__file__).parent.parent / "bench"
NUMBERS = (7, 8, 9, 10, 11, 12, 13)


@pytest.fixture
def verdicts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import verdicts

    return verdicts


@pytest.mark.parametrize("number", NUMBERS)
def test_a_planted_truth_is_found(verdicts, number):
    rng = np.random.default_rng(number)
    assert {verdicts.planted(number, True, rng) for _ in range(2)} == {"holds"}
    assert {verdicts.planted(number, False, rng) for _ in range(2)} == {"refuted"}


@pytest.mark.parametrize("number", [9, 10, 11, 12, 13])
def test_a_claim_says_all_that_a_reader_needs(verdicts, number):
    plant, n = verdicts.PLANTED[number]
    claim = plant(True, np.random.default_rng(0), n)
    theta, *others = claim.numbers
    (rule,) = STUDIES[claim.study].rules
    assert claim.number == number and theta.level == rule.level and theta.n == n
    assert not any(c.isdigit() for c in claim.plain) and claim.sentence.endswith(".")
    assert all(number.n for number in others)
    assert short(rule.delta, rule.unit) in claim.rule
    assert {v.choice for v in claim.variants} >= {f"δ = {short(2 * rule.delta, rule.unit)}"}
    assert all(v.verdict != "not testable" for v in claim.variants)


def test_checks_never_decide(verdicts):
    from verdict_parts.evidence import MDM
    from verdict_parts.order import evidence_of

    study, evidence = STUDIES["decoding"], evidence_of(True, np.random.default_rng(1), 40)
    (claim,) = study.claims(evidence)
    assert claim.checks[1].passed is True  # planted: 90 % right against 50 %
    evidence._answers["sampler-confidence", MDM]["contains"][:] = 1.0
    (ceiling,) = study.claims(evidence)
    assert ceiling.checks[1].passed is None and "ceiling" in ceiling.checks[1].label
    assert ceiling.verdict == claim.verdict == "holds"


def test_what_cannot_be_tested_says_what_would_do(verdicts):
    from verdict_parts.evidence import ARM, MDM
    from verdict_parts.order import evidence_of

    study, evidence = STUDIES["decoding"], evidence_of(True, np.random.default_rng(2), 8)
    long = evidence.request
    evidence.request = long.model_copy(update={"length": 4})
    (short_,) = study.claims(evidence)
    evidence.request = long
    order = evidence.order("sampler-confidence", MDM)
    order.examples["boundary"][:] = np.nan
    (stopped,) = study.claims(evidence)
    evidence.models = {ARM: {"direction": "causal"}}
    (alone,) = study.claims(evidence)
    for claim, says in ((short_, "--length"), (stopped, "Early stop"), (alone, "--model")):
        assert claim.verdict == "not testable" and says in claim.why


def test_no_head_that_only_differs_makes_claim_ten_hold(verdicts):
    """Most heads differ between the domains there; once each of them counted as switching."""
    plant, n = verdicts.PLANTED[10]
    claim = plant(False, np.random.default_rng(3), n)
    differ = [x for x in claim.numbers if "differ without crossing" in x.label]
    assert len(differ) == 2 and all(x.value > 0.5 for x in differ)
    assert claim.numbers[0].value < 0.02 and claim.verdict == "refuted"
