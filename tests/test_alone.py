"""A run with one kind of model: it is summarised by itself, and says what another model would add."""

import re

import pytest

from floatscope.models import tiny
from floatscope.report.build import render_report
from floatscope.report.content import command, commands
from floatscope.studies import request_of
from floatscope.studies.alone import alone
from floatscope.studies.demo import MOVEMENT, TWIN, is_demo
from floatscope.studies.demo import _request as demo_of
from floatscope.studies.findings import Findings
from floatscope.studies.run import run

NEED_BOTH = {"1", "2", "4", "6b"}


@pytest.fixture(scope="module", params=["LLaDA", "Llama"])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    shape = tiny.Shape(layers=2, width=16, heads=2, kv_heads=2, ffn=16)
    model = str(tiny.write(request.param, folder / request.param, shape))
    fields = {"studies": ["floating", "structure"], "data": "world:one", "limit": 4, "length": 4}
    fields |= {"steps": 4, "view": 1, "shard": 4, "controls": 3, "models": [model]}
    return run(request_of(fields), folder / "run")[1]


def test_one_model_is_summarised_against_chance_and_the_control(found):
    summary = alone(found)
    causal = found.mdm is None
    assert summary.missing == ("diffusion" if causal else "causal")
    assert {claim.number for claim in summary.untested} >= {"1", "2", "4", "6b"}
    rests, moves = summary.topics
    labels = [number.label for number in rests.numbers]
    assert {"The first token", "The first token, control", "layers with a real anchor",
            "heads with a real anchor"} <= set(labels)  # fmt: skip
    first = next(number for number in rests.numbers if number.label == "The first token")
    assert first.null is not None and 0 <= first.value <= 1
    heads = next(number for number in rests.numbers if number.label.startswith("heads"))
    assert heads.unit == "of 4" and any("head " in text for text in rests.sentences)
    assert "sharpness-matched control" in rests.sentences[0]
    over = ["layer"] if causal else ["step", "layer"]
    assert [number.label.split(", ")[1] for number in moves.numbers] == [
        f"{x} to {x}" for x in over
    ]
    assert all(number.null is not None for number in moves.numbers)


def test_the_page_tells_it_instead_of_claims_that_cannot_be_tested(found):
    html = render_report(found)
    start = html.index('<section id="alone"')
    section = html[start : html.index("</section>", start)]
    assert "Where attention rests" in section and "How it moves" in section
    assert "would add" in section and section.count("<img") == 1
    cards = html[html.index('<section id="claims"') :]
    cards = cards[: cards.index("Registered before the run")]
    numbers = set(re.findall(r'<span class="which">(\w+)</span>', cards))
    assert not numbers & NEED_BOTH


def given(request, **values):
    """Findings without a run."""
    made = object.__new__(Findings)
    made.__dict__ |= {"request": request, "extra_runs": (), **values}
    return made


def test_a_run_with_both_kinds_has_no_such_summary(found):
    kinds = {"a": {"direction": "bidirectional"}, "b": {"direction": "causal"}}
    assert alone(given(found.request, models=kinds)) is None


# Names and commands


def test_a_run_is_repeated_with_all_its_groups_of_models(found):
    extra = given(found.request, label="twin/mdm on long:continuation")
    whole = given(found.request, extra_runs=(extra,))
    assert [text.split("--out ")[1] for text in commands(whole)] == [
        "run", "run-twin-mdm-on-long-continuation",
    ]  # fmt: skip
    outs = {
        command(part.request, "movement", part.file_prefix).split("--out ")[1]
        for part in (whole, extra)
    }
    assert outs == {"run-movement", "run-movement-twin-mdm-on-long-continuation"}


@pytest.mark.parametrize("extra", [(MOVEMENT,), (MOVEMENT, TWIN)])
def test_the_demo_is_repeated_by_its_own_command(extra):
    asked = demo_of(*extra)
    assert is_demo(asked) and not is_demo(asked.model_copy(update={"limit": 7}))
    assert commands(given(asked)) == ["floatscope demo --out demo"]
