"""Tasks for long answers: texts that no model of ours was trained on, prompts, scores."""

import hashlib
import re
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

import floatscope as fs
from floatscope.errors import UsageError
from floatscope.sequences.prompt import encode
from floatscope.tasks import Asks, Condition, Passage, PlainTemplate, WorldTemplate, named
from floatscope.tasks.held_out import held_out
from floatscope.tasks.long_questions import FOLLOWING, OPENING
from floatscope.tasks.long_scores import distinct, grounded, rouge_l
from floatscope.tasks.long_texts import OPENINGS, Article, openings, paragraphs
from floatscope.tasks.prose import sentences

TASKS = ("long:continuation", "long:summary", "long:answer")


# Texts


def test_every_opening_is_of_an_article_held_out():
    titles = [article.title for article in openings()]
    assert len(set(titles)) == len(titles) == 64 and all(map(held_out, titles))
    # One title in fifty, by a hash anybody can compute; training states the same rule.
    some = [f"title {i}" for i in range(5000)]
    kept = [t for t in some if held_out(t)]
    digest = hashlib.new("sha256")
    digest.update(kept[0].encode())
    assert 70 < len(kept) < 130 and int.from_bytes(digest.digest(), "big") % 50 == 0


def test_sources_are_named():
    about = (OPENINGS.parent / "LONG.md").read_text(encoding="utf-8")
    for article in (*openings(), *paragraphs()):
        assert f"- [{article.title}](https://en.wikipedia.org/wiki/" in about
    assert "CC BY-SA 4.0" in about


def test_a_question_is_answered_by_its_paragraph():
    assert len(paragraphs()) == 48
    for article in paragraphs():
        assert len(article.questions) == 2
        assert all(a in article.text for q in article.questions for a in q.answers)


def test_sentences_end_where_a_reader_ends_them():
    text = "He met J. R. Smith in c. 1900. It rained! The U.S. Army left. Was it 3.5 km? Yes."
    assert Article("", text).sentences == (
        "He met J. R. Smith in c. 1900.", "It rained!", "The U.S. Army left.", "Was it 3.5 km?", "Yes.",
    )  # fmt: skip
    for article in openings():
        assert " ".join(article.sentences) == article.text and len(article.sentences) >= 3


# Records


def test_a_continuation_follows_its_opening():
    records = fs.tasks.long_records("long:continuation")
    books = {f"long:continuation/book/{i}": " ".join(s) for i, s in enumerate(sentences())}
    articles = {f"long:continuation/article/{a.title}": a.text for a in openings()}
    texts = books | articles
    assert {record.id for record in records} == set(texts) and len(records) == 192
    for record in records:
        whole = f"{record.question} {record.answers[0]}"
        assert texts[record.id].startswith(whole) and not record.passages
        assert len(record.question.split()) == OPENING
        assert 30 < len(record.answers[0].split()) <= FOLLOWING


def test_a_summary_is_compared_with_the_passage_s_beginning():
    for record in fs.tasks.long_records("long:summary"):
        (passage,) = record.passages
        assert passage.text.startswith(record.answers[0]) and passage.gold
        assert len(record.answers[0]) < len(passage.text) and passage.title in record.question


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_draws_an_order_and_fewer_are_the_first(task):
    every = fs.tasks.long_records(task)
    ids = [record.id for record in every]
    assert len(set(ids)) == len(ids)
    assert fs.tasks.long_records(task, 5) == every[:5] == named.named_records(task, 5)
    other = [record.id for record in fs.tasks.long_records(task, seed=1)]
    assert other != ids and sorted(other) == sorted(ids)
    with pytest.raises(UsageError, match=f"expected 1 to {len(every)} records of {task}"):
        fs.tasks.long_records(task, len(every) + 1)


def test_names(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="long:summary"):
        named.named_records("long:poem", 3)
    assert named.asks("long:summary") is Asks.SUMMARY and named.asks("world:nine") is Asks.WORDS
    assert named.named_records("known:nine", 2)[0].known is True
    monkeypatch.chdir(tmp_path)
    (tmp_path / "long:summary").write_text("{}")  # a file of that name is a file
    assert not named.is_named("long:summary") and named.is_named("long:answer")


# Prompts


def prompts(task, condition=None, **how):
    record = fs.tasks.long_records(task, 1)[0]
    return record, PlainTemplate(**how).prompt(record, condition)


def test_a_continuation_is_text_and_nothing_else(models):
    record, prompt = prompts("long:continuation")
    assert prompt.text == record.question and prompt.chat is False
    assert set(encode(models["Llama"], prompt).regions) <= {"prompt", "template"}
    assert prompts("long:continuation", chat=True)[1].chat is True


def test_what_is_asked_for_is_said():
    record, prompt = prompts("long:summary")
    assert "summary of two or three sentences" in prompt.parts[0].text
    assert prompt.gold == "passage 1" and record.question in prompt.text
    record, prompt = prompts("long:answer")
    assert prompt.text.startswith("Answer the question in one or two full sentences.")
    closed = PlainTemplate().prompt(record, Condition(closed_book=True))
    assert record.passages[0].text not in closed.text and record.question in closed.text
    assert prompts("long:answer", instruction="Say.")[1].text.startswith("Say.\n")


def test_conditions_that_have_no_meaning_say_so():
    text, summary, answer = (fs.tasks.long_records(task, 9) for task in TASKS)
    assert Condition().apply(text[0]) == text[0]
    for condition in (Condition(closed_book=True), Condition(passages=3)):
        with pytest.raises(UsageError, match="a text to continue"):
            condition.apply(text[0], text)
    with pytest.raises(UsageError, match="summary of its passage"):
        Condition(closed_book=True).apply(summary[0])
    for records in (summary, answer):
        three = Condition(passages=3, gold=1).apply(records[0], records)
        assert len(three.passages) == 3 and three.passages[1] == records[0].passages[0]
    with pytest.raises(UsageError, match="asks for a long answer"):
        WorldTemplate().prompt(text[0])


# Scores


@pytest.mark.parametrize(
    ("said", "right", "expected"),
    [
        ("police killed the gunman", "police kill the gunman", 3 / 4),  # Lin 2004, section 3.1
        ("the gunman kill police", "police kill the gunman", 2 / 4),
        ("a b c", "A, b; C!", 1),
        ("", "a b", 0),
        ("x y", "a b c d", 0),
        ("a b", "a x b y", 2 * 2 / 6),
    ],
)
def test_rouge_l_by_hand(said, right, expected):
    assert rouge_l(said, [right]) == pytest.approx(expected)
    assert rouge_l(said, ["none of it", right]) == pytest.approx(expected)


@given(st.text("abc ", max_size=24), st.text("abc ", min_size=1, max_size=24).filter(str.strip))
def test_rouge_l_is_the_longest_common_subsequence(said, right):
    one, two = tuple(said.split()), tuple(right.split())

    @lru_cache(None)
    def longest(i, j):
        if i == len(one) or j == len(two):
            return 0
        if one[i] == two[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    common = longest(0, 0)
    recall, precision = common / len(two), common / len(one) if one else 0
    f = 2 * recall * precision / (recall + precision) if common else 0
    assert rouge_l(said, [right]) == pytest.approx(f)


def test_nothing_to_compare_with_is_refused():
    with pytest.raises(UsageError, match="nothing to compare with"):
        rouge_l("a", ["?!"])


def test_repetition_and_ground():
    assert distinct("a b c d a b c d") == 4 / 5  # abcd bcda cdab dabc abcd
    assert distinct("one two three four five") == 1
    assert distinct("too short for") != distinct("too short for")  # NaN
    assert grounded("The cat sat on a Mat.", "A mat, and a cat.") == 2 / 3  # sat is not there
    assert grounded("of the", "of the") != 0  # NaN: no content word


# Asking


def test_every_score_that_has_a_meaning_and_no_other(llada):
    sampler = fs.Confidence(length=12, steps=3)
    text = fs.evaluate(llada, fs.tasks.long_records("long:continuation", 2), sampler)
    table = text.table
    assert table[["contains", "f1", "exact_match", "cut"]].isnull().all(axis=None)
    assert text.scores[0] == "rouge_l" and not text.cut_off
    for row, decoding in zip(table.itertuples(), text.decodings, strict=True):
        special = {llada.tokenizer.decode([i]) for i in llada.special_ids}
        said = [llada.tokenizer.decode([i]) for i in decoding.answer_ids]
        assert row.content_tokens == sum(one not in special for one in said)
        assert row.rouge_l == rouge_l(row.prediction, row.answers)
    assert {"rouge_l", "rouge_l_low"} <= set(text.summary())
    brief = Passage("It was in Boston.", gold=True)  # letters are tokens of this model
    asked = [
        [replace(one, passages=(brief,)) for one in fs.tasks.long_records("long:answer", 2)],
        fs.tasks.world_records("world:one", 2),
    ]
    sentence, words = (fs.evaluate(llada, records, sampler) for records in asked)
    assert sentence.table["contains"].notnull().all() and sentence.table["rouge_l"].isnull().all()
    # Letters at random make few words: what is made of words may have no value.
    assert (
        sentence.scores[:2] == ("contains", "f1") and sentence.table["exact_match"].isnull().all()
    )
    assert words.scores == ("contains", "exact_match", "f1") and "rouge_l" not in words.table


def test_evaluate_prints_what_long_answers_are_like(command_line, checkpoints, tmp_path):
    out = tmp_path / "answers"
    done = command_line(
        *("evaluate", "--model", checkpoints["LLaDA"], "--data", "long:continuation"),
        *("--limit", 2, "--length", 8, "--steps", 2, "--out", out),
    )
    printed = re.sub(r"\s+", " ", done.stdout)
    assert "ROUGE-L" in printed and "grounded (%)" in printed and "contains" not in printed
    assert out.exists() and "cut off" not in done.stderr
