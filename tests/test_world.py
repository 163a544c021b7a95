"""The synthetic world: spans, determinism, splits, dials."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.tasks.world import LEAD, LEVELS, RANGES, Level, World, prompt_parts, split_of
from floatscope.tasks.world.lexicon import POOL_SIZES, pool

NOISE = ["The Danube flows through ten countries.", "Whales sing. Nobody knows why."]
WORLD = World(0)


@st.composite
def levels(draw: st.DrawFn) -> Level:
    """Any level that the dials allow."""
    passages = draw(st.integers(2, 24))
    hops = draw(st.integers(1, 2))
    conflicts = draw(st.integers(0, min(4, passages - hops)))
    noise = draw(st.integers(0, passages - hops - conflicts))
    confusable = draw(st.integers(0, passages - hops - conflicts - noise))
    return Level(
        passages=passages,
        hops=hops,
        conflicts=conflicts,
        noise=noise,
        confusable=confusable,
        gold=draw(st.none() | st.integers(0, passages - 1)),
        answer=draw(st.sampled_from(["any", "short", "long"])),
        questions=draw(st.integers(1, 24)),
    )


@settings(max_examples=150, deadline=None)
@given(levels(), st.integers(0, 10**6), st.sampled_from(["train", "held"]))
def test_every_span_is_right(level: Level, seed: int, split: str):
    context = WORLD.context(level, random.Random(seed), split=split, noise=NOISE)
    assert len(context.passages) == level.passages
    assert sum(p.kind == "noise" for p in context.passages) == level.noise
    assert sum(p.kind == "rumour" for p in context.passages) == level.conflicts
    assert 1 <= len(context.questions) <= level.questions
    for passage in context.passages:
        for fact in passage.facts:
            sentence = passage.text[slice(*fact.sentence)]
            assert passage.text[slice(*fact.span)] == fact.value
            assert fact.sentence[0] <= fact.span[0] and fact.span[1] <= fact.sentence[1]
            assert sentence.endswith(".") and sentence[0].isupper()
    first = context.questions[0]
    assert first.hops == level.hops
    if level.gold is not None:
        assert first.gold == level.gold
    if level.answer != "any":
        assert (" " in first.answers[0]) == (level.answer == "long")
    for q in context.questions:
        assert q.fact in context.passages[q.gold].facts and not q.fact.rumour
        assert q.answers == (q.fact.value,) and q.evidence[-1] == q.gold
        assert q.subject in q.text and q.text.endswith("?")
        if q.hops == 2:
            bridge = context.passages[q.evidence[0]]
            assert any(f.subject == q.subject and f.value == q.fact.subject for f in bridge.facts)
        else:
            assert q.fact.subject == q.subject


@settings(max_examples=60, deadline=None)
@given(levels(), st.integers(0, 10**6))
def test_conflicts_and_confusable_names(level: Level, seed: int):
    context = WORLD.context(level, random.Random(seed), noise=NOISE)
    first = context.questions[0]
    for passage in context.passages:
        if passage.kind == "rumour":
            fact = passage.facts[0]
            assert fact.attribute == first.attribute and fact.subject == first.fact.subject
            assert fact.value != first.answers[0]
    if level.confusable:
        mine = set(first.subject.split())
        subjects = {p.facts[0].subject for p in context.passages if p.facts} - {first.subject}
        assert sum(bool(mine & set(s.split())) for s in subjects) >= level.confusable / 2


def test_the_same_seed_gives_the_same_examples():
    for level in LEVELS.values():
        one, two = (World(3).examples(level, 3, seed=5, noise=NOISE) for _ in range(2))
        assert one == two
        assert one != World(3).examples(level, 3, seed=6, noise=NOISE)
    assert [p.facts for p in World(1).known_people] == [p.facts for p in World(1).known_people]


def test_known_and_unseen_share_no_name():
    known = {w for p in WORLD.known_people for w in p.name.split()}
    assert all(split_of(w) == "train" for w in known)
    for level in LEVELS.values():
        for e in WORLD.examples(level, 30, noise=NOISE):
            words = [
                w
                for w in e.subject.split()
                if w[0].isupper() and w not in ("Port", "Lower", "Upper", "Saint", "New", "Old")
            ]
            assert words and all(split_of(w) == "held" for w in words) and not known & set(words)
            assert not e.known
    for kind in POOL_SIZES:
        train, held = pool(kind, "train"), pool(kind, "held")
        assert len(held) > 100 and not set(train) & set(held)


@pytest.mark.parametrize("known", [False, True])
def test_a_rival_has_the_same_relation_and_attribute_but_other_entities(known):
    """Two pairs of passages, one shape: the same relation and attribute, other people, other answers."""
    for e in WORLD.examples(LEVELS["rivals"], 40, known=known):
        bridge, gold = e.evidence
        facts = [{f.attribute: f for f in p.facts} for p in e.passages]
        relation = next(
            f for f in facts[bridge].values() if f.value == facts[gold][e.attribute].subject
        )
        others = [i for i in range(4) if i not in e.evidence]
        (end,) = (i for i in others if e.attribute in facts[i] and any(
            facts[j].get(relation.attribute) is not None
            and facts[j][relation.attribute].value == facts[i][e.attribute].subject
            for j in others
        ))  # fmt: skip
        assert facts[end][e.attribute].value not in e.answers
        assert len({p.facts[0].subject for p in e.passages}) == 4
    with pytest.raises(ValueError, match="rivals = 1: give hops = 2"):
        Level(rivals=1)


def test_known_people_keep_their_facts():
    facts = {p.name: p.facts for p in WORLD.known_people}
    for e in WORLD.examples(LEVELS["hops"], 50, known=True):
        for passage in e.passages:
            for fact in passage.facts:
                assert facts[fact.subject][fact.attribute] == fact.value
    rng = random.Random(0)
    for _ in range(50):
        e = WORLD.ask_known(rng)
        assert e.answers == (facts[e.subject][e.attribute],) and e.passages == ()
        assert WORLD.biography(rng).count(".") >= 2


def test_parts_spell_the_prompt_and_hold_the_spans():
    e = WORLD.examples(LEVELS["three"], 1)[0]
    parts = e.parts()
    text = "".join(t for _, t in parts)
    assert text.startswith("Passages:\n[1] ") and text.endswith("?\nAnswer:")
    gold = dict(parts)[f"passage {e.gold}"]
    start, end = (i + len(LEAD) for i in e.answer_span)
    assert gold[start:end] == e.answers[0]
    closed = e.closed_book()
    assert closed.parts() == prompt_parts(e.question) == parts[-3:]
    assert closed.gold_sentence is None and closed.answer_span is None


@pytest.mark.parametrize("dial", RANGES)
def test_dials_out_of_range_are_named_with_their_range(dial: str):
    low, high = RANGES[dial]
    for bad in (low - 1, high + 1):
        with pytest.raises(ValueError, match=rf"{dial} = .* from {low} to {high}"):
            Level(**{dial: bad})


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"gold": 9}, "gold = 9.* from 0 to 8"),
        ({"passages": 2, "hops": 2, "conflicts": 1}, "passages = 2.* from 3 to 24"),
        ({"passages": 3, "confusable": 3}, "confusable = 3.* from 0 to 2"),
    ],
)
def test_dials_that_do_not_fit_together_are_named(dials: dict, says: str):
    with pytest.raises(ValueError, match=says):
        Level(**dials)


def test_invalid_arguments_are_named():
    with pytest.raises(ValueError, match="noise = 4"):
        WORLD.examples(LEVELS["noise"], 1)
    with pytest.raises(ValueError, match="confusable = 8"):
        WORLD.examples(LEVELS["names"], 1, known=True)
    with pytest.raises(ValueError, match="people = 1"):
        World(0, people=1)
