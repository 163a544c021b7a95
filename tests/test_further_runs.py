"""Claims that a further run in the same directory answers: every place says the same about them."""

import json
import re
from types import SimpleNamespace

import pytest

from floatscope.models import tiny
from floatscope.report.build import render_report
from floatscope.report.tables import tables_of
from floatscope.studies import Findings, request_of
from floatscope.studies.claim import Claim
from floatscope.studies.run import run


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A diffusion model alone, which cannot be compared with a causal one, then a pair."""
    folder = tmp_path_factory.mktemp("both")
    shape = tiny.Shape(layers=2, width=16, heads=2, kv_heads=2, ffn=16)
    mdm, arm = (str(tiny.write(name, folder / name, shape)) for name in ("LLaDA", "Llama"))
    fields = {"studies": ["structure"], "data": "world:one", "limit": 6, "length": 4, "steps": 4}
    fields |= {"view": 0, "shard": 6, "controls": 0, "models": [mdm]}
    return run(
        request_of(fields | {"extra_runs": [{"models": [mdm, arm], "controls": 2}]}), folder / "run"
    )[1]


def test_a_claim_is_answered_by_the_run_that_can_test_it(both):
    own, part, shown = (
        {claim.number: claim for claim in claims}
        for claims in (
            both.claims["structure"],
            both.extra_runs[0].claims["structure"],
            both.verdicts,
        )
    )
    assert own["6b"].verdict == "not testable" and part["6b"].verdict != "not testable"
    assert (
        shown["6b"] == part["6b"] and shown["6b"].study == f"structure: {both.extra_runs[0].label}"
    )
    assert own["6b"].scope == "for LLaDA, on world:one"  # nothing was measured
    assert part["6b"].scope.startswith("for LLaDA and Llama, ")


def test_page_summary_and_table_give_the_same_verdicts(both):
    summary = json.loads((both.run.directory / "summary.json").read_text())
    given = [(c["number"], c["verdict"], c["scope"], c["study"]) for c in summary["claims"]]
    assert given == [(c.number, c.verdict, c.scope, c.study) for c in both.verdicts]
    table = tables_of(both)[0].frame
    columns = [table[name] for name in ("claim", "verdict", "scope", "study")]
    assert {*zip(*columns, strict=True)} == {*given}
    html = render_report(both)
    for number, verdict, scope, _ in given:
        article = re.search(rf'<span class="which">{number}</span>.*?</details>', html, re.S)[0]
        assert f"is-{verdict.replace(' ', '-')}" in article and scope in article


def test_a_claim_of_further_runs_alone_is_listed_once():
    """The demo asks `movement` in two further runs: the first that can test it decides."""
    first, second = (
        Claim("3", "text", verdict, "", (), "movement") for verdict in ("holds", "not testable")
    )
    parts = [SimpleNamespace(verdicts=(claim,)) for claim in (second, first)]
    whole = SimpleNamespace(claims={}, extra_runs=parts)
    assert Findings.verdicts.func(whole) == (first,)
