"""The decoding and the dormancy study end to end, on small models; and what an older run left."""

import json
import shutil
from dataclasses import replace

import pytest

from floatscope.studies import Findings, request_of
from floatscope.studies.planning import plan
from floatscope.studies.run import run
from floatscope.studies.verdict import LITERATURE, level_of


@pytest.fixture(scope="module")
def finished(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    data = folder / "questions.jsonl"
    rows = [
        {"question": f"What is {i}?", "answers": [f"w{i}"], "passages": [f"It is w{i}. " * 4], "gold": 0}
        for i in range(4)
    ]  # fmt: skip
    data.write_text("\n".join(map(json.dumps, rows)))
    request = request_of(
        {
            "studies": ("decoding", "dormancy"),
            "models": (str(checkpoints["LLaDA"]),),
            "data": str(data),
            **{"limit": 3, "questions": 3, "length": 6, "steps": 2, "view": 0, "shard": 2},
        }
    )
    return run(request, folder / "run")[1]


def test_every_position_is_revealed_and_end_tokens_are_known(finished, models):
    order = finished.order("sampler-confidence", finished.mdm)
    assert (order.examples["unrevealed"] == 0).all()
    assert order.examples["ends_first"].notnull().all()
    shard = next(s for s in finished.plan.shards if s.spec.get("setting") == "sampler-confidence")
    meta = finished.run.read(shard.id, ()).meta
    assert "stop_at_eos=False" in meta["sampler"]
    assert meta["end_ids"] == list(models["LLaDA"].end_ids)


def test_claims_have_a_primary_quantity_and_a_verdict(finished):
    claims = {c.number: c for name in ("decoding", "dormancy") for c in finished.claims[name]}
    assert list(claims) == ["9a", "9b", "9c", "10a", "10b"]
    assert all(claim.rule and claim.variants for claim in claims.values())
    for number in ("9c", "10a", "10b"):
        theta = claims[number].numbers[0]
        assert theta.level == level_of(LITERATURE) and theta.n == 3
    assert "48 content tokens" in claims["9a"].why and "decoding.frequencies" in claims["9b"].why
    assert claims["10b"].verdict == "undecided" and "needs 20 examples" in claims["10b"].why
    share = claims["10a"].numbers[0]
    assert 0 <= share.low <= share.value <= share.high <= 1


def test_prose_has_as_many_examples_as_questions(finished):
    for model in finished.models:
        assert finished.result("dormancy", model, "prose").n == 3


def test_a_run_of_an_older_plan_opens(finished, tmp_path):
    """It had half of the prose, answers with early stop, and no end ids."""
    old = shutil.copytree(finished.run.directory, tmp_path / "old")
    manifest = json.loads((old / "manifest.json").read_text())
    later = {s["shard"] for s in manifest["result"]["shards"] if s["shard"].endswith("prose-00002")}
    assert len(later) == 1
    for shard in later:
        for ending in ("shard", "json"):
            (old / "shards" / f"{shard}.{ending}").unlink()
    kept = [s for s in manifest["result"]["shards"] if s["shard"] not in later]
    manifest["result"]["shards"] = kept
    (old / "manifest.json").write_text(json.dumps(manifest))
    found = Findings(old)
    assert found.result("dormancy", found.mdm, "prose").n == 2
    assert found.claims["dormancy"][0].numbers[0].n == 2


def test_a_changed_spec_changes_the_shards_key(finished):
    """Answers with early stop, or traces of other prose, are not taken for these."""
    planned = plan(finished.request)
    keys = planned.keys()
    for name, left in (("early_stop", "ask-0-000-00000"), ("text", "trace-0-prose-00000")):
        shards = tuple(
            replace(s, spec={k: v for k, v in s.spec.items() if k != name}) for s in planned.shards
        )
        assert replace(planned, shards=shards).keys()[left] != keys[left]
