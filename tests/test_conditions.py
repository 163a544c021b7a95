"""Conditions: what they promise, on real records and on the world's."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floatscope as fs
from floatscope.tasks.conditions import Condition, gold_sweep, noise_sweep, passage_counts
from floatscope.tasks.pool import Pool, content_words
from floatscope.tasks.readers import read_records
from floatscope.tasks.record import Passage, Record
from floatscope.tasks.scores import contains
from floatscope.tasks.world_questions import world_records

DATA = Path(__file__).parent / "data"
ORACLE = read_records(DATA / "nq-open-oracle.jsonl").records
MULTI = read_records(DATA / "nq-multidoc.jsonl").records
WORLD = world_records("world:nine", 40)
HOPS = world_records("world:hops", 40)
SETS = {"oracle": ORACLE, "multi": MULTI, "world": WORLD, "hops": HOPS}


def texts(record):
    return [p.text for p in record.passages]


def clean(record):
    """No distractor holds an answer."""
    others = [p for p in record.passages if not p.is_required]
    return not any(contains(f"{p.title} {p.text}", record.answers) for p in others)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_condition_sets_the_number_of_passages_and_the_place_of_gold(data):
    name = data.draw(st.sampled_from(list(SETS)))
    records = SETS[name]
    record = data.draw(st.sampled_from(records))
    most = {"oracle": 9, "multi": 20, "world": 25, "hops": 25}[name]
    n = data.draw(st.integers(2, most))
    gold = data.draw(st.none() | st.integers(0, n - 1))
    condition = Condition(passages=n, gold=gold, seed=data.draw(st.integers(0, 3)))
    made = condition.apply(record, records)
    assert len(made.passages) == n == len(set(texts(made)))
    assert gold is None or made.gold == gold
    assert made.passages[made.gold] == record.passages[record.gold]
    assert {p for p in record.passages if p.is_required} <= set(made.passages)
    assert clean(made)
    assert (made.id, made.question, made.answers) == (record.id, record.question, record.answers)


def test_drawn_passages_depend_on_seed_and_id_alone():
    shuffled = list(WORLD)
    random.Random(0).shuffle(shuffled)
    condition = Condition(passages=20, noise=0.5, conflicts=2)
    one = {r.id: condition.apply(r, WORLD) for r in WORLD}
    two = {r.id: condition.apply(r, Pool(shuffled)) for r in shuffled}
    assert one == two
    other = Condition(passages=20, noise=0.5, conflicts=2, seed=1)
    assert all(other.apply(r, WORLD) != one[r.id] for r in WORLD)


def test_drawn_distractors_differ_by_record_and_seed():
    bare = [r.with_passages([r.passages[r.gold]]) for r in WORLD]
    draws = [
        frozenset(texts(Condition(passages=5, seed=seed).apply(r, WORLD))) - set(texts(r))
        for r in bare
        for seed in (0, 1)
    ]
    assert len(set(draws)) > 70  # of 80


def test_more_passages_include_those_of_fewer_passages():
    for record in ORACLE:
        few = set(texts(Condition(passages=4).apply(record, ORACLE)))
        assert few < set(texts(Condition(passages=8).apply(record, ORACLE)))
    for record in WORLD:
        base = set(texts(Condition(passages=9).apply(record, WORLD)))
        some = set(texts(Condition(passages=9, noise=0.25).apply(record, WORLD)))
        more = set(texts(Condition(passages=9, noise=0.75).apply(record, WORLD)))
        assert len(some - base) == 2 and len(more - base) == 6 and some - base < more - base


def test_own_distractors_come_first_and_in_order():
    record = MULTI[0]
    own = [p.text for p in record.passages if not p.gold]
    made = Condition(passages=6, gold=2).apply(record, MULTI)
    assert [t for t in texts(made) if t in own] == own[:5]
    sweep = [c.apply(record, MULTI) for c in gold_sweep(6, [0, 3, 5])]
    assert [m.gold for m in sweep] == [0, 3, 5]
    assert len({tuple(t for t in texts(m) if t in own) for m in sweep}) == 1


def test_the_drawn_place_of_gold_covers_all_places():
    made = [Condition(passages=4).apply(r, WORLD) for r in WORLD]
    assert {m.gold for m in made} == {0, 1, 2, 3}


def test_setting_gold_moves_only_the_gold_passage():
    for record in HOPS:
        same = Condition(gold=record.gold).apply(record)
        assert same.passages == record.passages
        first = Condition(gold=0).apply(record)
        rest = [p for p in record.passages if not p.gold]
        assert list(first.passages) == [record.passages[record.gold], *rest]
    assert Condition().apply(HOPS[0]) is HOPS[0]
    assert Condition(question_first=True, extra_masks=8).apply(HOPS[0]) is HOPS[0]


def test_noise_passages_share_no_content_word_with_the_question():
    for record in WORLD:
        quiet = Condition(passages=9, gold=4).apply(record, WORLD)
        loud = Condition(passages=9, gold=4, noise=1).apply(record, WORLD)
        new = [p for p in loud.passages if p not in quiet.passages]
        assert len(new) == 8 and loud.gold == 4
        for passage in new:
            assert not content_words(record.question) & content_words(passage.text)
        assert clean(loud)
        assert Condition(passages=9, gold=4, noise=0).apply(record, WORLD) == quiet


def test_conflicts_state_another_answer():
    answers = {a for r in WORLD for a in r.answers}
    for record in WORLD:
        made = Condition(passages=9, conflicts=2).apply(record, WORLD)
        assert len(made.passages) == 9 and sum(p.gold for p in made.passages) == 1
        before, after = record.passages[record.gold].text.split(record.answers[0], 1)
        false = [
            p.text
            for p in made.passages
            if not p.gold and p.text not in texts(record) and p.text.startswith(before)
        ]
        assert len(set(false)) == 2
        for text in false:
            assert not contains(text, record.answers)
            assert any(text == f"{before}{wrong}{after}" for wrong in answers)
        assert len(Condition(conflicts=1).apply(record, WORLD).passages) == 10  # on top


def test_conflicts_replace_every_alias_in_text_and_title():
    gold = Passage(r"New York City, or new york, is C:\1.", "New York", gold=True)
    record = Record("x", "Which?", ("New York", "New York City"), (gold,))
    other = Record("y", "Which?", (r"Old \1 Town",))
    made = Condition(conflicts=1, gold=0).apply(record, [record, other])
    assert made.passages[1].text == r"Old \1 Town, or Old \1 Town, is C:\1."
    assert made.passages[1].title == r"Old \1 Town"


def test_closed_book_has_no_passages():
    assert Condition(closed_book=True).apply(MULTI[0]) == MULTI[0].closed_book()


def test_a_record_without_gold_is_taken_as_retrieved():
    passages = tuple(Passage(f"text {i}") for i in range(4))
    record = Record("x", "Which?", ("2",), passages)
    assert Condition(passages=2).apply(record).passages == passages[:2]
    assert Condition(passages=6).apply(record, WORLD).passages[:4] == passages
    for condition in (Condition(gold=0), Condition(noise=0.5), Condition(conflicts=1)):
        with pytest.raises(fs.UsageError, match="'x' marks no passage as gold"):
            condition.apply(record, WORLD)


def test_a_second_gold_passage_is_kept():
    passages = (Passage("a b", gold=True), Passage("c"), Passage("b d", gold=True))
    record = Record("x", "Which?", ("b",), passages)
    assert Condition(gold=0).apply(record).passages == passages
    assert set(Condition(passages=2).apply(record).passages) == {passages[0], passages[2]}


BARE = Record("bare", "Who?", ("I",), where="file.jsonl, line 3")


@pytest.mark.parametrize(
    ("condition", "record", "pool", "says"),
    [
        (Condition(), BARE, (), "'bare' .file.jsonl, line 3. has no passages, and 'as-is'"),
        (Condition(passages=5), BARE, WORLD, "has no passages"),
        (Condition(passages=14), ORACLE[0], ORACLE, "needs 13 more .* among 12 records there are"),
        (Condition(passages=3), ORACLE[0], (), "needs 2 more passages"),
        (Condition(passages=9, noise=1), MULTI[0], MULTI[:1], "nor a content word"),
        (Condition(passages=1), HOPS[0], HOPS, "2 passages are needed to answer .* passages=1"),
        (Condition(gold=9), WORLD[0], WORLD, "gold = 9, but there are 9 passages"),
        (Condition(conflicts=2), WORLD[0], WORLD[:2], "needs 2 conflicting passages; [01] could"),
    ],
)
def test_impossible_conditions_are_refused_with_a_remedy(condition, record, pool, says):
    with pytest.raises(fs.UsageError, match=says):
        condition.apply(record, pool)


def test_a_conflict_without_a_literal_answer_is_refused():
    record = Record("x", "Which?", ("cat",), (Passage("A category.", gold=True),))
    with pytest.raises(fs.UsageError, match="'x'.*does not contain the answer literally"):
        Condition(conflicts=1).apply(record, WORLD)


@pytest.mark.parametrize(
    "given",
    [
        {"passages": 0},
        {"noise": 1.5},
        {"gold": -1},
        {"conflicts": -1},
        {"extra_masks": -1},
        {"passages": 3, "gold": 3},
        {"passages": 2, "conflicts": 2},
        {"closed_book": True, "passages": 3},
        {"closed_book": True, "question_first": True},
    ],
)
def test_contradictory_conditions_are_refused(given):
    with pytest.raises(fs.UsageError):
        Condition(**given)


def test_the_name_of_a_condition_parses_to_the_condition():
    assert Condition().name == "as-is"
    assert Condition(closed_book=True).name == "closed-book"
    full = Condition(9, 0, 0.5, 2, question_first=True, extra_masks=8, seed=3)
    assert (
        full.name == "passages=9,gold=0,noise=0.5,conflicts=2,question-first,extra-masks=8,seed=3"
    )
    for condition in (Condition(), Condition(closed_book=True, extra_masks=4), full):
        assert Condition.parse(condition.name) == condition
    assert Condition.parse(" passages = 5, question-first ").passages == 5
    for text in ("", "passage=5", "passages=five", "passages", "closed-book=1", "gold=0,"):
        with pytest.raises(fs.UsageError, match="unknown setting"):
            Condition.parse(text)


def test_sweeps_name_their_conditions():
    assert [c.name for c in passage_counts([0, 1, 5], gold=0)] == [
        "closed-book",
        "passages=1,gold=0",
        "passages=5,gold=0",
    ]
    assert [c.name for c in noise_sweep(5, [0.0, 0.5], seed=2)] == [
        "passages=5,noise=0.0,seed=2",
        "passages=5,noise=0.5,seed=2",
    ]
