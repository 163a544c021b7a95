"""Scores against cases worked out by hand from SQuAD's official script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import floatscope as fs
from floatscope.tasks.scores import contains, exact_match, f1, normalise, score


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat.", "cat"),
        ("A man, a plan", "man plan"),
        ("U.S.A.", "usa"),
        ("anthem", "anthem"),
        ("Röntgen’s", "röntgen’s"),  # a curly apostrophe is no ASCII punctuation: it stays
        ("well-known", "wellknown"),
        ("Łódź\n\tПарис", "łódź парис"),
        ("the a an", ""),
        ("", ""),
    ],
)
def test_normalisation(text, expected):
    assert normalise(text) == expected


CASES = [
    # prediction, answers, exact match, contained, F1
    ("Paris", ["paris"], 1, 1, 1),
    ("The Paris.", ["Paris"], 1, 1, 1),
    ("in Paris, France", ["Paris"], 0, 1, 1 / 2),  # precision 1/3, recall 1
    ("Paris", ["Paris France"], 0, 0, 2 / 3),  # precision 1, recall 1/2
    ("Parisian", ["Paris"], 0, 0, 0),
    ("York New", ["New York"], 0, 0, 1),  # F1 does not see order
    ("New big York", ["New York"], 0, 0, 4 / 5),  # precision 2/3, recall 1
    ("b b b", ["b b c"], 0, 0, 2 / 3),  # two in common of three and three
    ("12 May 1901", ["1901", "May 12, 1901"], 0, 1, 1),  # the best alias of each score
    ("", ["Paris"], 0, 0, 0),
    ("the", ["Paris"], 0, 0, 0),
    ("", ["The"], 0, 0, 0),  # the official script says 1 here: see the module
    ("an", ["A"], 0, 0, 0),
    ("A.", ["A"], 1, 1, 1),
    ("vitamin A", ["A"], 0, 1, 2 / 3),
    ("?", ["?"], 1, 1, 1),
    ("Wilhelm Röntgen", ["Röntgen"], 0, 1, 2 / 3),
    ("Ro\u0308ntgen", ["R\u00f6ntgen"], 0, 0, 0),  # compared as written, as in the official script
    ("東京", ["東京"], 1, 1, 1),
    ("東京都", ["東京"], 0, 0, 0),  # no spaces, no words
]


@pytest.mark.parametrize(("prediction", "answers", "exact", "contained", "overlap"), CASES)
def test_exact_match_and_f1_by_hand(prediction, answers, exact, contained, overlap):
    assert score(prediction, answers) == {
        "exact_match": exact,
        "contains": contained,
        "f1": pytest.approx(overlap),
    }


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=30)
ANSWERS = st.lists(TEXT.filter(str.strip), min_size=1, max_size=3)


@given(TEXT, ANSWERS)
def test_scores_lie_in_0_to_1_and_do_not_depend_on_the_order_of_answers(prediction, answers):
    result = score(prediction, answers)
    assert all(0 <= value <= 1 for value in result.values())
    assert result["contains"] >= result["exact_match"] and result["f1"] >= result["exact_match"]
    assert result == score(prediction, answers[::-1])
    assert score(answers[0], answers) == {"exact_match": 1, "contains": 1, "f1": 1}
    assert f1(prediction, answers) == max(f1(prediction, [a]) for a in answers)
    assert contains(f"so {answers[0]} then", answers) == 1
    assert exact_match("", answers) == 0 == f1("", answers)


def test_score_with_empty_or_no_answers_is_refused():
    for answers in ([], ["a", " "], "Paris"):
        with pytest.raises(fs.UsageError, match="nothing to compare"):
            score("Paris", answers)


def test_matched_answer_returns_the_first_contained_answer():
    from floatscope.tasks.scores import matched_answer

    assert matched_answer("It was in London, then.", ["Paris", "London"]) == "London"
    assert matched_answer("the U.S.", ["USA", "the US", "U.S."]) in ("the US", "U.S.")
    assert matched_answer("Rome", ["Paris", "London"]) == ""
