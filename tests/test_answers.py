"""Asking, scoring, comparing: on real records with the embedded pair, and on what cannot be asked."""

import json

import numpy as np
import pytest

import floatscope as fs
from floatscope.decode.presets import all_samplers
from floatscope.errors import UsageError
from floatscope.interventions.parse import intervention_of
from floatscope.stats.frequencies import corpus_texts, count, read_frequencies
from floatscope.tasks import Passage, PlainTemplate, WorldTemplate
from floatscope.tasks.templates import template_of


@pytest.fixture(scope="module")
def arm():
    return fs.load("pair/arm", check=False)


@pytest.fixture(scope="module")
def mdm():
    return fs.load("pair/mdm", check=False)


@pytest.fixture(scope="module")
def records():
    return fs.tasks.world_records("world:three", 12, seed=5)


SAMPLER = fs.Autoregressive(length=10)


def test_passages_help_with_unseen_people_and_not_with_known_ones(arm, records):
    read = fs.evaluate(arm, records, SAMPLER)
    closed = fs.evaluate(arm, records, SAMPLER, condition=fs.tasks.Condition(closed_book=True))
    gain, low, high = read.minus(closed)
    assert gain > 0.7 and low > 0.3 and low <= gain <= high
    assert gain == pytest.approx(read.mean()[0] - closed.mean()[0])
    known = fs.tasks.world_records("world:three", 8, known=True)
    memory = fs.evaluate(arm, known, SAMPLER, condition=fs.tasks.Condition(closed_book=True))
    assert memory.mean()[0] > 0.8
    assert list(read.table["id"]) == [r.id for r in records]  # shortest first, but given in order
    assert closed.table["prompt_tokens"].max() < read.table["prompt_tokens"].min()


def test_the_repr_shows_n_the_mean_score_and_its_meaning(arm, records):
    answers = fs.evaluate(arm, records)
    mean = answers.mean()
    assert mean == (mean.mean, mean.low, mean.high)
    assert f"n = {answers.n}, mean contains {100 * mean.mean:.3g} %" in repr(answers)
    assert "contain a right answer" in repr(answers) and len(repr(answers)) < 300


def test_answers_do_not_depend_on_the_batch(arm, mdm, records):
    for model, sampler in ((arm, SAMPLER), (mdm, fs.Confidence(length=10, steps=3))):
        one = fs.evaluate(model, records[:6], sampler, batch_size=1)
        many = fs.evaluate(model, records[:6], sampler, batch_size=4)
        assert list(one.table["prediction"]) == list(many.table["prediction"])


def test_an_intervention_is_active_during_evaluate_and_removed_after(arm, records):
    plain = fs.evaluate(arm, records, SAMPLER)
    cut = fs.evaluate(
        arm, records, SAMPLER, intervention=fs.interventions.MaskTokens(regions="gold")
    )
    assert cut.mean()[0] < plain.mean()[0] - 0.5
    assert cut.intervention == "MaskTokens(regions='gold')" and plain.intervention == ""
    again = fs.evaluate(arm, records, SAMPLER)
    assert list(again.table["prediction"]) == list(plain.table["prediction"])


def test_extra_masks_keep_the_tokens_per_step_and_must_fit_blocks(mdm, records):
    sampler = fs.Confidence(length=10, steps=5)
    more = fs.evaluate(mdm, records[:2], sampler, condition=fs.tasks.Condition(extra_masks=10))
    assert set(more.table["masks"]) == {20}
    assert "steps=10" in more.sampler
    blocks = fs.Confidence(length=10, block_length=5)
    with pytest.raises(UsageError, match="do not fit into blocks"):
        fs.evaluate(mdm, records[:1], blocks, condition=fs.tasks.Condition(extra_masks=1))


def test_questions_that_cannot_be_asked_raise_or_are_listed(arm, records):
    long = fs.tasks.Record(
        "long", "Why?", ("so",), (Passage("word " * 3000, gold=True),), where="f, line 3"
    )
    bare = fs.tasks.Record("bare", "Why?", ("so",), where="f, line 4")
    with pytest.raises(UsageError, match=r"'long' \(f, line 3\): .* exceed the context"):
        fs.evaluate(arm, [long], SAMPLER)
    with pytest.raises(UsageError, match=r"'bare' \(f, line 4\) has no passages"):
        fs.evaluate(arm, [bare], SAMPLER)
    some = fs.evaluate(arm, [*records[:2], long, bare], SAMPLER, skip_bad=True)
    assert some.n == 2 and [bad.where for bad in some.left_out] == ["f, line 3", "f, line 4"]
    with pytest.raises(UsageError, match="none of 2 questions"):
        fs.evaluate(arm, [long, bare], SAMPLER, skip_bad=True)
    with pytest.raises(UsageError, match="no id occurs in all"):
        some.minus(fs.evaluate(arm, records[4:5], SAMPLER))


def test_compare_samplers_evaluates_every_sampler_on_one_task(mdm, records):
    compared = fs.tasks.compare_samplers(mdm, records[:2], length=8, steps=4, frequencies="pair")
    table = compared.table().set_index("name")
    assert set(table.index) == set(all_samplers(8, 4))
    assert len(table) == 12
    assert (table["n"] == 2).all()
    assert table.loc["remask", "steps"] == 8 and table.loc["confidence", "steps"] <= 4
    assert table.loc["threshold", "steps"] < 8
    # Two tokens a block, in order: more left to right than any order inside one block can be.
    assert table.loc["semi-autoregressive", "left_to_right"] > 0.8
    assert table["left_to_right"].dropna().between(-1, 1).all()
    drawn = [axis for axis in compared.plot().axes if axis.get_visible()]
    assert len(drawn) == 13  # twelve maps and their scale


def test_decoding_order_of_a_decoding_equals_that_of_its_trace(mdm, records):
    prompt = WorldTemplate().prompt(records[0])
    sampler = fs.Confidence(length=8, block_length=4)
    measure = fs.measures.DecodingOrder(frequencies="pair")
    traced = measure(mdm.trace(prompt, sampler, keep=["residual_norm"]))
    plain = measure.of_decodings([mdm.generate(prompt, sampler)], mdm.name, mdm.end_ids)
    for name in traced.values:
        np.testing.assert_array_equal(traced[name], plain[name])


def test_frequencies_are_counted_from_a_corpus(arm, tmp_path):
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one two\n\ntwo")
    lines.write_text(json.dumps({"text": "two"}) + "\n")
    shares = count(arm.tokenizer, corpus_texts([plain, lines]), arm.vocab_size)
    ids = [
        i
        for text in ("one two\n\n", "two", "two")
        for i in arm.tokenizer(text, add_special_tokens=False)["input_ids"]
    ]
    expected = np.bincount(ids, minlength=arm.vocab_size) / len(ids)
    np.testing.assert_allclose(shares, expected, rtol=1e-6)
    lines.write_text('{"txt": 1}\n')
    with pytest.raises(
        UsageError, match=r"b.jsonl, line 1: expected a JSON object with a `text` field"
    ):
        list(corpus_texts([lines]))
    with pytest.raises(UsageError, match="cannot be read"):
        list(corpus_texts([tmp_path / "missing.txt"]))
    with pytest.raises(UsageError, match="no tokens"):
        count(arm.tokenizer, [], arm.vocab_size)


def test_the_pair_has_frequencies_of_its_training_text(arm):
    shares = read_frequencies("pair")
    assert len(shares) == arm.vocab_size and shares.sum() == pytest.approx(1, abs=1e-5)
    the, rare = (
        arm.tokenizer(t, add_special_tokens=False)["input_ids"][-1] for t in (" the", " Xq")
    )
    assert shares[the] > 0.01 > shares[rare]


def test_interventions_by_name():
    spec = "mask-columns,k=5,rule=excess(4),layers=0:4,heads=1|3,control=random"
    assert intervention_of(spec) == fs.interventions.MaskColumns(
        k=5, rule=fs.anchors.Excess(4.0), layers=slice(0, 4), heads=[1, 3], control="random"
    )
    together = intervention_of("sink-token + mask-tokens,regions=gold|question;layers=2")
    assert together == fs.interventions.Combined(
        (
            fs.interventions.SinkToken(),
            fs.interventions.MaskTokens(regions=("gold", "question"), layers=[2]),
        )
    )
    for text, says in {
        "mask": "no intervention 'mask'",
        "mask-columns,n=5": "no such field",
        "mask-columns:k=5": "Write mask-columns,k=5.",
        "mask-columns,rule=best": "no rule",
        "mask-columns,rule=excess(x)": "rule",
        "mask-columns,layers=a": "Write 3",
    }.items():
        with pytest.raises(UsageError, match=says):
            intervention_of(text)


def test_templates_by_name():
    assert template_of("auto", None) is None
    assert template_of("world", None) == WorldTemplate()
    assert template_of("auto", False) == PlainTemplate(chat=False)
    with pytest.raises(UsageError, match="no template"):
        template_of("fancy", None)
