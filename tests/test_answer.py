"""The first line of a run's output: true of the verdicts, and of the models that each claim is about."""

from dataclasses import replace

import pytest

from floatscope.studies.answer import FLOATS, FRONTIER, ModelClaim, answer, answered
from floatscope.studies.claim import THETA, Claim, Number

MDM, ARM = "pair/mdm", "pair/arm"


def claimed(number, verdict, mdm=MDM, arm=ARM):
    numbers = ()
    if number == "3":
        theta = Number("layers that move", 4.0, 3.0, 6.0, unit="layers", n=24, role=THETA)
        numbers = (theta, Number("layers with a real anchor", 9.0, unit="of 12"))
    claim = Claim(number, "text", verdict, "", numbers, "floating")
    return ModelClaim(claim, mdm, arm)


def said(**verdicts):
    return answer([claimed(number.strip("c"), verdict) for number, verdict in verdicts.items()])


def test_all_claims_hold():
    assert said(c1="holds", c2="holds", c3="holds", c4="holds") == (
        "Does attention float? In pair/mdm it moves over denoising steps (4 of 12 layers [3, 6]), and more "
        "than in pair/arm over layers and from prompt to prompt; pair/arm rests on its first token."
    )


def test_refuted_comparisons_do_not_say_that_attention_stays():
    assert said(c2="refuted", c3="holds", c4="refuted") == (
        "Does attention float? In pair/mdm it moves over denoising steps (4 of 12 layers [3, 6]); it moves "
        "over layers and from prompt to prompt no more than in pair/arm."
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"c4": "holds"}, "In pair/mdm it moves more than in pair/arm over layers."),
        ({"c4": "refuted"}, "In pair/mdm it moves over layers no more than in pair/arm."),
        (
            {"c4": "undecided"},
            "In pair/mdm this run cannot tell whether it moves more than in pair/arm over layers.",
        ),
        (
            {"c3": "refuted", "c4": "holds"},
            "In pair/mdm it moves more than in pair/arm over layers; it stays over denoising steps "
            "(4 of 12 layers [3, 6]).",
        ),
        (
            {"c3": "undecided", "c2": "undecided"},
            "In pair/mdm this run cannot tell whether it moves over denoising steps "
            "(4 of 12 layers [3, 6]), or more than in pair/arm from prompt to prompt.",
        ),
        ({"c1": "holds"}, "pair/arm rests on its first token."),
        ({"c1": "refuted"}, "pair/arm rests on its first token no more than pair/mdm."),
    ],
)
def test_one_short_clause_per_fact(verdicts, expected):
    assert said(**verdicts) == f"Does attention float? {expected}"


def test_claims_of_a_further_run_name_its_models():
    found = answer([
        claimed("1", "holds"), claimed("3", "holds", "twin/mdm", None), claimed("4", "holds"),
        claimed("2", "refuted", "twin/mdm", "twin/arm"),
    ])  # fmt: skip
    assert found == (
        "Does attention float? In twin/mdm it moves over denoising steps (4 of 12 layers [3, 6]); it moves "
        "from prompt to prompt no more than in twin/arm; in pair/mdm it moves more than in pair/arm over "
        "layers; pair/arm rests on its first token."
    )


def test_nothing_tested_gives_no_answer():
    assert answer([]) == said(c1="undecided", c3="not testable", c7="holds") == ""


def test_a_comparison_without_a_named_causal_model_is_still_a_comparison():
    found = answer([claimed("4", "holds", arm=None)])
    assert found.endswith("In pair/mdm it moves more than in a causal model over layers.")


def sides(number, verdict, mdm, arm, unit="%"):
    both = (Number("MDM: moves", mdm, unit=unit), Number("ARM: moves", arm, unit=unit))
    return ModelClaim(
        Claim(number, "Text", verdict, "", both, "s", plain="In plain words."), MDM, ARM
    )


def test_every_question_is_answered_by_its_claims_floating_first():
    found = answered([
        claimed("7", "undecided"), sides("4", "holds", 0.976, 0.0), claimed("3", "holds"),
        claimed("99", "holds"),
    ])  # fmt: skip
    assert [one.question for one in found] == [
        FLOATS, "Do passages help diffusion models 1.5 times as much as causal ones?", "text?",
    ]  # fmt: skip
    floats = found[0]
    assert [part.name for part in floats.parts] == ["Over denoising steps", "From layer to layer"]
    assert [part.text for part in floats.parts] == [
        "In 4 of 12 layers (interval 3 to 6) of pair/mdm the anchor, the most attended key, moves; in the "
        "other layers it stays.",
        "In pair/mdm the next layer has another anchor in 97.6 % of cases, in pair/arm in 0 %.",
    ]
    assert [part.verdict for part in floats.parts] == ["in some layers", ""]


def test_an_anchor_is_said_to_move_with_the_frontier_where_its_interval_is_above_zero():
    one = claimed("3", "holds")
    for low, said_so in ((0.2, True), (-0.1, False)):
        along = Number(FRONTIER, 0.6, low, 0.9)
        claim = replace(one.claim, numbers=(*one.claim.numbers, along))
        ((part,),) = [found.parts for found in answered([replace(one, claim=claim)])]
        assert ("boundary between revealed and masked" in part.text) == said_so


@pytest.mark.parametrize("number", ["1", "2", "4", "7"])
def test_a_comparison_is_told_with_both_numbers_and_other_words_where_it_is_refuted(number):
    unit = "points" if number == "7" else "%"
    told = {}
    for verdict in ("holds", "refuted", "undecided", "not testable"):
        ((part,),) = [one.parts for one in answered([sides(number, verdict, 0.429, 0.405, unit)])]
        told[verdict] = part.text
    assert len(set(told.values())) == 4
    for verdict in ("holds", "refuted"):
        assert all(x in told[verdict] for x in ("42.9", "40.5", MDM, ARM))
    assert told["undecided"] == "In plain words." and told["not testable"] == ""
