"""Studies on long answers: what runs, what says why it cannot, and claims 3 and 9 by content alone."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from floatscope.models import tiny
from floatscope.studies import STUDIES, request_of
from floatscope.studies.long_answers import LONG
from floatscope.studies.planning import plan, settings_of
from floatscope.studies.run import run

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from verdict_parts.evidence import MDM
from verdict_parts.order import evidence_of

DECODING = STUDIES["decoding"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    model = tiny.write(
        "LLaDA", folder / "LLaDA", tiny.Shape(context=1024)
    )  # letters are tokens there
    request = request_of(
        {
            "studies": [name for name in STUDIES if name not in ("geometry", "structure")],
            "models": (str(model),),
            "data": "long:continuation",
            **{"limit": 2, "questions": 2, "length": 52, "steps": 4, "view": 1, "shard": 2},
        }
    )
    return run(request, folder / "run")[1]


def claims(finished):
    return {claim.number: claim for some in finished.claims.values() for claim in some}


def test_what_cannot_be_told_on_running_text_says_why(finished):
    whys = {7: "neither right nor wrong", 8: "neither right nor wrong", 10: "is running text"}
    for number, why in whys.items():
        claim = claims(finished)[number]
        assert claim.verdict == "not testable" and why in claim.why and "--data" in claim.why
    assert finished.sentences["flow"] == finished.sentences["retrieval"]
    assert "no passages" in finished.sentences["flow"][0]
    assert {name.partition("-")[0] for name in settings_of(finished.request)} == {"sampler"}


def test_claims_about_steps_say_how_long_answers_are(finished):
    model = finished.mdm
    for number, content in (
        (3, finished.result("masked-rows", model).examples["content"].values),
        (9, finished.order("sampler-confidence", model).examples["content"].values),
    ):
        (length,) = [n for n in claims(finished)[number].numbers if n.unit == "tokens"]
        assert length.value == pytest.approx(content.mean()) and length.value >= LONG
        assert claims(finished)[number].verdict != "not testable"
    # An independent count: what of the canvas is no end token, in the one trace that is kept.
    _, _, shard, index = finished.shown()[0]
    trace = finished.trace(shard, index)
    start, ends = int(trace.info["prompt_length"]), set(trace.info["end_ids"])
    final = trace.canvas.values[-1, start:].tolist()
    measured = finished.result("masked-rows", model).examples["content"].values[0]
    assert measured == sum(token not in ends for token in final)


def test_nothing_is_right_or_wrong_there(finished):
    assert finished.right("sampler-confidence", finished.mdm) is None
    check = claims(finished)[9].checks[1]
    assert check.passed is None and "neither right nor wrong" in check.label
    table = finished.tables["answers"]
    assert table["contains"].isnull().all()
    summary = json.loads((finished.run.directory / "summary.json").read_text())
    assert summary["right"]["sampler-confidence"] == {}


def test_all_read_the_same_text_at_most_as_long_as_what_is_decoded(finished):
    """The same state: prompt and gold, of which as many words as tokens are decoded."""
    from floatscope.studies.worker import make

    worker = make(finished.request.as_json())
    gold = worker._gold("questions", 0)
    assert gold.startswith(" ") and len(gold.split()) == finished.request.length
    assert worker.records[0].answers[0].startswith(gold.strip())
    assert worker._gold("prose", 0) == ""


@pytest.mark.parametrize("data", ["long:summary", "long:answer", "long:continuation"])
def test_only_what_can_be_asked_is_planned(data):
    fields = {"studies": list(STUDIES), "models": ["pair/mdm"], "data": data, "limit": 4}
    request = request_of(fields)
    names = set(settings_of(request))
    assert ("with-passages" in names) == ("columns-5-mass" in names) == (data == "long:answer")
    assert "sampler-confidence" in names
    domains = {s.spec["domain"] for s in plan(request).shards if s.spec["kind"] == "trace"}
    assert ("prose" in domains) == (data != "long:continuation")


# Claim 9 where the truth was planted, behind end tokens that are all revealed first.


@pytest.mark.parametrize(("true", "verdict"), [(True, "holds"), (False, "refuted")])
def test_end_tokens_do_not_make_an_order_of_long_answers(true, verdict):
    evidence = evidence_of(true, np.random.default_rng(4), 24, long=True)
    (claim,) = DECODING.claims(evidence)
    assert claim.verdict == verdict
    (length,) = [n for n in claim.numbers if n.unit == "tokens"]
    assert length.value >= LONG and f"{length.value:.1f} content tokens" in claim.sentence
    # Over all positions the end would come first, whatever the text does.
    (whole,) = [v for v in claim.variants if v.choice == "all positions"]
    assert whole.verdict == "holds"


def test_a_short_answer_is_decided_by_all_positions_and_says_so():
    evidence = evidence_of(True, np.random.default_rng(5), 24)
    (claim,) = DECODING.claims(evidence)
    content = evidence.order("sampler-confidence", MDM).examples["content"].values
    assert f"Decided on answers of {content.mean():.2f} content tokens" in claim.sentence
    assert f"fewer than {LONG}." in claim.sentence
    assert "content tokens alone" in {v.choice for v in claim.variants}
