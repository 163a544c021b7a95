"""Runs side by side: units, the mean over them where there are enough, and runs that are refused."""

import csv
import hashlib
import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from floatscope import cli
from floatscope.errors import UsageError
from floatscope.models import tiny
from floatscope.studies import request_of
from floatscope.studies.claim import Number, describe_curve
from floatscope.studies.comparison import Unit, _compare_claim, compare
from floatscope.studies.numbers import number
from floatscope.studies.registration import NAME
from floatscope.studies.run import run
from floatscope.studies.verdict import Rule, judge

RULE = Rule("1", "Water is wet", "wetness", delta=0.1, unit="points", holds="Wet.", refuted="Dry.")


def unit(name, mean, rule=RULE, n=24, control=None, **more):
    """θ of n examples around this mean, with a standard deviation of 0.1."""
    spread = np.linspace(-1, 1, n)
    values = mean + 0.1 * spread / spread.std()
    theta = number(values, "θ", "points", level=rule.level)
    return Unit(name, judge(rule, "study", theta, control=control, **more), (name,))


def test_five_units_have_a_mean_with_a_verdict():
    several = [unit(f"model {i}", 0.5 + 0.02 * i) for i in range(5)]
    found = _compare_claim(RULE, several)
    assert found.verdict == "holds" and found.effects.units == 5
    assert found.mean.value == pytest.approx(0.54, abs=1e-3)
    assert found.mean.low > 0.1 and found.mean.level == RULE.level
    assert [u.claim.verdict for u in found.units] == ["holds"] * 5
    low = _compare_claim(RULE, [unit(f"model {i}", -0.5 + 0.02 * i) for i in range(5)])
    assert low.verdict == "refuted"


def test_units_that_differ_are_undecided_although_each_is_decided():
    """Prompts of one model say nothing about the next model."""
    several = [unit(f"model {i}", mean) for i, mean in enumerate((-0.6, 0.7, -0.4, 0.9, 0.6))]
    found = _compare_claim(RULE, several)
    assert {u.claim.verdict for u in found.units} == {"holds", "refuted"}
    assert found.verdict == "undecided" and found.effects.i2 > 0.9 and found.effects.tau > 0.3


def test_fewer_than_five_are_listed_without_a_verdict():
    several = [unit(f"model {i}", 0.5) for i in range(4)]
    one_more = Unit("no interval", judge(RULE, "study", None), ("x",))
    found = _compare_claim(RULE, [*several, one_more])
    assert found.mean is None and found.verdict == "" and len(found.units) == 5
    assert "4 of 5 units" in found.why and "without a verdict" in found.why


def test_the_same_weights_are_one_unit():
    several = [replace(unit(f"run {i}", 0.5), weights=("same",)) for i in range(5)]
    found = _compare_claim(RULE, several)
    assert found.verdict == "" and "same weights" in found.why


def test_units_with_different_smallest_effects_are_listed():
    other = replace(RULE, delta=0.2)
    several = [unit(f"model {i}", 0.5, rule=RULE if i else other) for i in range(6)]
    found = _compare_claim(RULE, several)
    assert found.verdict == "" and "δ = 10.0 points, 20.0 points" in found.why


def test_untrained_weights_are_averaged_too():
    rule = replace(RULE, untrained=True)
    for earned, verdict in ((0.0, "holds"), (0.5, "undecided")):
        control = Number("untrained", earned, earned - 0.02, earned + 0.02, None, "points", 24)
        several = [unit(f"m{i}", 0.5 + 0.01 * i, rule, control=control) for i in range(5)]
        assert _compare_claim(rule, several).verdict == verdict
    assert (
        _compare_claim(rule, [unit(f"m{i}", 0.5, rule) for i in range(5)]).verdict == "not testable"
    )


def test_counts_with_equal_ends_have_a_mean():
    rule = replace(RULE, delta=2, unit="layers", count=True)
    counts = (5, 6, 5, 7, 6)
    claims = [
        judge(rule, "s", Number("θ", k, k, k, None, "layers", 24, rule.level)) for k in counts
    ]
    found = _compare_claim(rule, [Unit(str(i), claim, (str(i),)) for i, claim in enumerate(claims)])
    assert found.verdict == "holds" and found.effects.tau > 0.5
    assert found.mean.value == pytest.approx(5.8)
    assert describe_curve(claims[0].curve).startswith(
        "The claim holds for δ up to 5 layers, is refuted for δ above 5 layers"
    )


@pytest.mark.parametrize(
    ("number", "unit_name", "values", "ends"),
    [
        ("3", "layers", (0, 1, 2, 3, 6), (0, np.inf)),
        ("10a", "%", (0.6, 0.7, 0.85, 0.95, 0.99), (0, 1)),
        ("1", "points", (-0.9, -0.5, 0.2, 0.9, 0.95), (-1, 1)),
        ("7", "points", (2.2, 1.4, -0.8, -1.0, 2.4), (-2.5, 2.5)),
        ("10b", "×", (0.1, 0.2, 0.1, 0.9, 0.3), (0, np.inf)),
    ],
)
def test_the_mean_over_units_stays_in_the_range_of_its_quantity(number, unit_name, values, ends):
    def compared(name):
        rule = replace(RULE, number=name, unit=unit_name if name == number else "nats")
        thetas = [Number("θ", v, v - 0.05, v + 0.05, None, "", 24, rule.level) for v in values]
        claims = [judge(rule, "s", theta) for theta in thetas]
        return _compare_claim(rule, [Unit(str(i), one, (str(i),)) for i, one in enumerate(claims)])

    free, found = compared("no range"), compared(number)
    assert free.mean.low < ends[0] or free.mean.high > ends[1]
    assert found.mean.low == max(free.mean.low, ends[0])
    assert found.mean.high == min(free.mean.high, ends[1])
    assert (found.effects.low, found.effects.high) == (found.mean.low, found.mean.high)


# Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        shape = tiny.Shape(layers=2, width=16, heads=2, kv_heads=2, ffn=16, context=512, seed=seed)
        models = [
            str(tiny.write(family, folder / f"{family}-{seed}", shape))
            for family in ("LLaDA", "Llama")
        ]
        fields = {
            "studies": ["structure"],
            "data": "world:one",
            "limit": 6,
            "length": 4,
            "steps": 4,
        }
        fields |= {"models": models, "view": 0, "shard": 6, "controls": 0}
        run(request_of(fields), folder / f"seed-{seed}")
    return folder


def test_two_runs_are_listed_and_written(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    files = ["--json", str(tmp_path / "c.json"), "--csv", str(tmp_path / "c.csv")]
    monkeypatch.setattr(sys, "argv", ["floatscope", "compare", "seed-1", "seed-2", *files])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = capsys.readouterr()
    assert "without a verdict" in " ".join(shown.out.split()) and "5 or more models" in shown.err
    written = json.loads((tmp_path / "c.json").read_text())
    assert {len(claim["units"]) for claim in written} == {2}
    assert {claim["verdict"] for claim in written} == {""} and written[0]["mean"] is None
    names = [one["name"] for one in written[0]["units"]]
    assert names == ["LLaDA-1 and Llama-1", "LLaDA-2 and Llama-2"]
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert [row["name"] for row in rows[:2]] == names
    for row, one in zip(rows, [u for claim in written for u in claim["units"]], strict=True):
        assert row["value"] == ("" if one["theta"] is None else str(one["theta"]["value"]))


def test_a_run_twice_has_names_of_its_own_and_is_no_second_unit(runs):
    (first, *_) = compare([runs / "seed-1", runs / "seed-1"])
    assert len({unit.name for unit in first.units}) == 2
    assert len({unit.weights for unit in first.units}) == 1


def test_runs_registered_with_different_rules_are_refused(runs, tmp_path):
    other = shutil.copytree(runs / "seed-2", tmp_path / "other")
    before = hashlib.sha256((other / NAME).read_bytes()).hexdigest()
    fields = json.loads((other / NAME).read_text())
    ((number, claim), *_) = fields["runs"]["run"]["claims"].items()
    claim["delta"] = -9.0
    (other / NAME).write_text(json.dumps(fields))
    digest = hashlib.sha256((other / NAME).read_bytes()).hexdigest()
    for file in ("run.json", "log.jsonl"):  # as if the run had been begun with it
        (other / file).write_text((other / file).read_text().replace(before, digest))
    with pytest.raises(
        UsageError, match=rf"claim {number}.delta is .* there, -9.0 in the second.*--claim"
    ):
        compare([runs / "seed-1", other])
    with pytest.raises(UsageError, match="no run has a claim 99"):
        compare([runs / "seed-1", runs / "seed-2"], ["99"])
