"""Claim 7 on planted answers, answers that were cut off, and the questions that the demo asks."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import floatscope as fs
from floatscope.errors import UsageError
from floatscope.models import tiny
from floatscope.studies.demo import DEMO
from floatscope.studies.evidence import Evidence
from floatscope.studies.gains import Gains, Unpaired, aligned
from floatscope.studies.library.knowledge import CLOSED, WITH, Knowledge
from floatscope.studies.planning import plan, questions_of, settings_of
from floatscope.studies.request import request_of
from floatscope.studies.run import run
from floatscope.studies.verdict import LITERATURE, level_of
from floatscope.tasks import cut
from floatscope.tasks.world_questions import MIXTURES, passages_of

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location(
        "verdicts_knowledge", BENCH / "verdicts_knowledge.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Planted(Evidence):
    """Evidence whose answers are given, by setting and model."""

    mdm, arm = "mdm", "arm"
    request = request_of({"studies": ["knowledge"], "models": ["mdm", "arm"]})

    def __init__(self, tables):
        self.tables = tables

    def answers(self, setting, model):
        return self.tables.get((setting, model))


def table(right, ids=None, **more):
    ids = np.array([f"q{i}" for i in range(len(right))] if ids is None else ids)
    scores = {key: np.asarray(right, float) for key in ("contains", "exact_match", "f1")}
    return {"id": ids, "question": np.char.add("What is ", ids), **scores, **more}


def share(right, n=200):
    """The first of n questions right."""
    return np.arange(n) < round(right * n)


def planted(mdm, arm, n=200, **more):
    """Each model's shares right, closed-book and with passages."""
    every = {"mdm": mdm, "arm": arm}
    return Planted(
        {
            (setting, model): table(share(right, n), **more)
            for model, shares in every.items()
            for setting, right in zip((CLOSED, WITH), shares, strict=True)
        }
    )


def claim(evidence):
    (one,) = Knowledge().claims(evidence)
    assert one.number == "7"
    return one


@pytest.mark.parametrize("name", ["three times", "equal", "half", "1.5 times"])
def test_the_verdict_is_right_at_the_size_of_the_demo(bench, name):
    truth = bench.TRUTHS[name]
    found = bench.verdicts(truth, DEMO["gain_questions"], 100)
    # Equal gains are nearer to 1.5 times as much: the demo's questions tell them apart in most runs.
    assert found[truth.right] >= (50 if name == "equal" else 90), found
    wrong = {"holds": found["refuted"], "refuted": found["holds"]}
    assert wrong.get(truth.right, found["holds"] + found["refuted"]) <= 5, found


def test_theta_is_the_mean_over_questions_with_students_interval():
    from scipy import stats

    rng = np.random.default_rng(1)
    gains = Gains(*(rng.integers(0, 2, 60).astype(float) for _ in range(4)))
    each = (gains.mdm_read - gains.mdm_closed) - 1.5 * (gains.arm_read - gains.arm_closed)
    theta = gains.theta()
    assert (
        theta.value == pytest.approx(each.mean())
        and theta.n == 60
        and theta.level == level_of(LITERATURE)
    )
    spread = stats.sem(each)
    low, high = stats.t.interval(level_of(LITERATURE), 59, each.mean(), spread)
    # Whatever the interval is made by, it must be about as wide as Student's, and hold the mean.
    assert theta.low < theta.value < theta.high
    assert 0.8 < (theta.high - theta.low) / (high - low) < 1.5


def test_the_claim_lists_the_measured_gains(bench):
    gains = bench.drawn(bench.TRUTHS["three times"], 200, np.random.default_rng(3))
    known = np.arange(200) % 2 == 0
    columns = dict(
        zip(
            [(s, m) for m in ("mdm", "arm") for s in (CLOSED, WITH)],
            (gains.mdm_closed, gains.mdm_read, gains.arm_closed, gains.arm_read),
            strict=True,
        )
    )
    found = claim(Planted({key: table(right, known=known) for key, right in columns.items()}))
    assert found.verdict == "holds" and "Passages help this diffusion model" in found.plain
    by_label = {n.label: n.value for n in found.numbers}
    assert by_label["MDM: gain from passages"] == pytest.approx(gains.mdm.mean())
    assert by_label["MDM − ARM"] == pytest.approx((gains.mdm - gains.arm).mean())
    assert found.numbers[0].value == pytest.approx((gains.mdm - 1.5 * gains.arm).mean())
    assert [check.passed for check in found.checks] == [True, True, True]
    choices = {v.choice: v for v in found.variants}
    assert choices["2× instead of 1.5×"].number.value == pytest.approx(
        (gains.mdm - 2 * gains.arm).mean()
    )
    assert {"1× instead of 1.5×", "exact match", "F1"} <= set(choices)
    alone = (gains.mdm - 1.5 * gains.arm)[known].mean()
    assert choices["known people alone"].number.value == pytest.approx(alone)
    assert "unseen people alone" in choices


@pytest.mark.parametrize(
    ("mdm", "arm", "says"),
    [
        ((0.0, 0.6), (0.3, 0.5), "the MDM answers 0 % right, outside 20 to 60 %"),
        ((0.3, 0.6), (0.7, 0.8), "the ARM answers 70.0 % right, outside"),
        ((0.3, 0.97), (0.3, 0.6), "the MDM answers 97.0 % right, near the ceiling"),
        ((0.5, 0.9), (0.3, 0.7), "could gain 50.0 points at most"),
    ],
)
def test_a_floor_or_a_ceiling_makes_the_claim_not_testable(mdm, arm, says):
    found = claim(planted(mdm, arm))
    assert found.verdict == "not testable" and says in found.why
    assert "ask " in found.why  # what would make it testable


def test_a_missing_model_makes_the_claim_not_testable():
    evidence = planted((0.3, 0.6), (0.3, 0.6))
    evidence.arm = None
    assert claim(evidence).verdict == "not testable" and "--model" in claim(evidence).why
    closed = planted((0.3, 0.6), (0.3, 0.6))
    del closed.tables[WITH, "mdm"]
    assert claim(closed).verdict == "not testable"


def test_cut_off_answers_make_the_claim_not_testable():
    """All wrong, closed-book and with passages, because no answer came to its end."""
    more = {"cut": share(0.6), "masks": np.full(200, 16), "known": np.full(200, None)}
    found = claim(planted((0.3, 0.3), (0.3, 0.3), **more))
    assert found.verdict == "not testable"
    assert "120 of 200 answers were cut off at 16 tokens" in found.why and "--length" in found.why
    fewer = more | {"cut": share(0.4)}
    assert claim(planted((0.3, 0.8), (0.3, 0.4), **fewer)).verdict == "holds"
    unknown = more | {"cut": np.full(200, None)}
    assert claim(planted((0.3, 0.8), (0.3, 0.4), **unknown)).verdict == "holds"


def test_questions_are_paired_by_their_ids():
    rng = np.random.default_rng(0)
    straight = planted((0.3, 0.8), (0.3, 0.5))
    mixed = Planted(dict(straight.tables))
    shuffled, one = rng.permutation(200), (WITH, "arm")
    mixed.tables[one] = {key: column[shuffled] for key, column in straight.tables[one].items()}
    assert claim(mixed).numbers == claim(straight).numbers
    fewer = Planted(dict(straight.tables))
    fewer.tables[one] = {key: column[:150] for key, column in straight.tables[one].items()}
    assert "over 150 of 200 questions" in claim(fewer).sentence

    twice = Planted(dict(straight.tables))
    ids = [*straight.tables[one]["id"][:-1], "q0"]
    twice.tables[one] = table(share(0.5), ids)
    assert claim(twice).verdict == "not testable" and "'q0' belongs to several" in claim(twice).why
    other = Planted(dict(straight.tables))
    other.tables[one] = straight.tables[one] | {"question": np.array(["Another?"] * 200)}
    assert "'q0' belongs to two different questions" in claim(other).why
    with pytest.raises(Unpaired, match="No question"):
        aligned([table([True], ["a"]), table([True], ["b"])])


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return {name: tiny.write(name, folder / name) for name in ("LLaDA", "Llama")}


def test_an_answer_without_an_end_is_cut_off(tiny_pair):
    """Against the tokens themselves, for both kinds of model."""
    assert cut.was_cut([5, 2, 7], (2, 9)) is False and cut.was_cut([5, 7], (2, 9)) is True
    assert cut.was_cut([5, 7], ()) is None
    assert cut.mostly([True, True, False]) and not cut.mostly([True, False])
    assert not cut.mostly([None])
    records = [fs.tasks.Record(f"r{i}", f"Who is number {i}?", ("x",)) for i in range(6)]
    samplers = {"LLaDA": fs.Confidence(length=4), "Llama": fs.Autoregressive(length=4)}
    for name, sampler in samplers.items():
        model = fs.load(tiny_pair[name], check=False)
        closed = fs.tasks.Condition(closed_book=True)
        answers = fs.evaluate(model, records, sampler, condition=closed)
        for decoding, noted in zip(answers.decodings, answers.table["cut"], strict=True):
            assert noted == (not any(i in model.end_ids for i in decoding.answer_ids))
        number = answers.table["cut"].sum()
        assert answers.summary()["cut"] == number and bool(answers.cut_off) == (number > 3)


def test_a_run_notes_cut_off_answers_and_asks_gain_questions(tiny_pair, tmp_path):
    """Untrained models hardly ever end: all is wrong, and that is no refutation."""
    fields = {"studies": ["knowledge"], "models": list(map(str, tiny_pair.values())), "view": 0}
    fields |= {"data": "world:mixed", "questions": 2, "gain_questions": 4, "length": 2, "shard": 2}
    _, found = run(request_of(fields), tmp_path / "run")
    answers = pd.read_parquet(tmp_path / "run/results/answers.parquet")
    sizes = answers.groupby("setting").size()
    assert sizes[CLOSED] == sizes[WITH] == 8 and sizes["gold-0"] == 4  # of two models
    records = fs.tasks.world_records("world:mixed", 4)
    of_one = answers[(answers["setting"] == WITH) & (answers["model"] == found.arm)]
    assert list(of_one["known"]) == [record.known for record in records]
    assert answers["cut"].mean() > 0.5
    assert claim(found).verdict == "not testable" and "cut off at 2 tokens" in claim(found).why
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["notes"] == found.notes and "--length" in found.notes[0]
    assert any("answers were cut off at 2 tokens" in s for s in summary["findings"]["knowledge"])


def test_the_command_line_warns_of_answers_that_were_cut_off(ended, tmp_path):
    flags = ["evaluate", "--model", "pair/arm", "--data", "world:one", "--condition", "closed-book"]
    flags += ["--limit", 4, "--length", 1, "--out", tmp_path / "a", "--format", "parquet"]
    short = ended(*flags)
    assert "4 of 4 answers were cut off at 1 tokens" in short.stderr and "--length" in short.stderr
    assert list(pd.read_parquet(tmp_path / "a/answers.parquet")["cut"]) == [True] * 4


def test_evaluate_refuses_a_file_as_its_directory(ended, tmp_path):
    done = ended(
        "evaluate", "--model", "pair/arm", "--data", "world:one", "--out", tmp_path / "a.csv"
    )
    assert done.returncode == 2 and "--format csv" in done.stderr and not [*tmp_path.iterdir()]


def test_a_mixture_asks_about_known_and_unseen_people():
    many = fs.tasks.world_records("world:mixed", 40, seed=2)
    assert fs.tasks.world_records("world:mixed", 13, seed=2) == many[:13]  # more begin as fewer do
    assert len({record.id for record in many}) == 40 and passages_of("world:mixed") == 4
    for part in MIXTURES["mixed"]:
        kind = f"world:{part.level}/{'known' if part.known else 'unseen'}/"
        records = tuple(record for record in many if record.id.startswith(kind))
        assert len(records) == 2 * part.questions  # of 20
        assert records == fs.tasks.world_records(f"world:{part.level}", len(records), 2, part.known)
    with pytest.raises(UsageError, match="known and unseen"):
        fs.tasks.world_records("world:mixed", 4, known=True)


def test_settings_may_ask_more_questions_than_the_others():
    fields = {"studies": ["knowledge"], "models": ["a", "b"], "data": "world:mixed"}
    request = request_of(fields | {"questions": 8, "gain_questions": 20, "view": 0, "shard": 2})
    settings = settings_of(request)
    assert {n for n, s in settings.items() if questions_of(s, request) == 20} == {CLOSED, WITH}
    asked = {}
    for shard in plan(request).shards:
        if shard.spec["model"] == "a":
            size = shard.spec["stop"] - shard.spec["start"]
            asked[shard.spec["setting"]] = asked.get(shard.spec["setting"], 0) + size
    assert asked == {name: questions_of(s, request) for name, s in settings.items()}
    assert request.as_json()["gain_questions"] == 20
    assert request_of(fields).as_json()["gain_questions"] is None


def test_two_questions_about_one_paragraph_count_once():
    """Answers that agree within a paragraph are half as many examples, not a narrower interval."""
    rng = np.random.default_rng(0)
    right = {key: np.repeat(rng.random(30) < p, 2) for key, p in ((CLOSED, 0.3), (WITH, 0.7))}
    pairs = {"cluster": np.repeat([f"paragraph {i}" for i in range(30)], 2)}
    both = [
        Planted({(s, m): table(right[s], **more) for m in ("mdm", "arm") for s in (CLOSED, WITH)})
        for more in ({}, pairs)
    ]
    for found in (
        [one.right(WITH, "mdm") for one in both],
        [one.accuracy_difference(WITH, CLOSED, "mdm") for one in both],
        [claim(one).numbers[0] for one in both],
    ):
        apart, together = found
        assert (apart.n, together.n) == (60, 30)
        assert together.value == pytest.approx(apart.value)
        assert together.high - together.low > 1.2 * (apart.high - apart.low)
