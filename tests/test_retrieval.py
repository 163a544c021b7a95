"""Retrieval heads: one that copies is found and no other; what luck brings; where it is silent."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.retrieval import RetrievalHeads

# 2 template, two passages of 5 tokens, 1 question, 3 answer
REGIONS = [*["template"] * 2, *["passage 1"] * 5, *["passage 2"] * 5, "question", *["answer"] * 3]
SIZE, PROMPT = 16, 13
IDS = [90, 91, 20, 21, 22, 23, 24, 30, 31, 32, 33, 34, 92]
ANSWER = [31, 33, 77]  # two tokens of passage 2 (keys 8 and 10), one of nowhere


def traced(a, *, gold="passage 2", answer=ANSWER, ids=IDS, causal=False, model="planted"):
    final = [*ids, *answer]
    canvas = np.tile(final, (4, 1))
    if not causal:
        for t in range(3):
            canvas[t, PROMPT + t :] = MASK
    return trace_of(
        a,
        causal=causal,
        regions=REGIONS,
        prompt_length=PROMPT,
        canvas=canvas,
        events=[(t, PROMPT + t, answer[t]) for t in range(3)],
        gold=gold,
        shift=int(causal),
        model=model,
    )


def copying(keys, *, layer=1, head=2, seed=0, shift=0):
    """Random attention, but one head gives key keys[t] most of row t's weight."""
    rng = np.random.default_rng(seed)
    a = random_attention(rng, 3, 3, 4, SIZE, causal=bool(shift), spread=0.2)
    a[..., 0] += 0.5  # every other head looks at position 0 most
    a /= a.sum(-1, keepdims=True)
    for t, key in enumerate(keys):
        row = np.full(SIZE, 0.1 / (SIZE - 1))
        row[key] = 0.9
        a[t, layer, head, PROMPT + t - shift] = row
    return a


@pytest.mark.parametrize("shift", [0, 1])
def test_the_head_that_copies_is_found_and_no_other(shift):
    found = RetrievalHeads()(traced(copying([8, 10, 5], shift=shift), causal=bool(shift)))
    expected = np.zeros((3, 4))
    expected[1, 2] = 1  # both tokens that gold holds; 77 could not be copied
    np.testing.assert_allclose(found["copy"], expected)
    assert found.heads.item() == 1
    assert found.evidence_lift.argmax(["layer", "head"])["head"].item() == 2
    assert float(found.evidence[1, 2]) == pytest.approx(
        (2 * (0.9 + 4 * 0.1 / 15) + 5 * 0.1 / 15) / 3
    )
    visible = [13, 14, 15] if shift else [16] * 3
    assert float(found.evidence_null[0, 0]) == pytest.approx(np.mean([5 / v for v in visible]))
    luck = np.mean([1 / visible[0], 1 / visible[1]])
    np.testing.assert_allclose(found.copy_null, luck)


def test_copying_half_of_the_tokens_scores_one_half():
    assert RetrievalHeads()(traced(copying([8, 5, 5])))["copy"][1, 2] == 0.5


def test_the_right_place_with_another_token_is_no_hit():
    """All of its weight on gold: evidence, but nothing copied."""
    found = RetrievalHeads()(traced(copying([7, 7, 7])))
    assert found["copy"].max() == 0 and found.heads.item() == 0
    assert float(found.evidence_lift[1, 2]) > 2.5


def test_the_right_token_outside_gold_is_no_hit():
    ids = [*IDS[:3], 31, *IDS[4:]]  # passage 1 holds 31 too, at key 3
    assert RetrievalHeads()(traced(copying([3, 5, 5]), ids=ids))["copy"].max() == 0


def test_a_token_hit_twice_counts_once():
    found = RetrievalHeads()(traced(copying([8, 8, 8]), answer=[31, 31, 33]))
    assert float(found["copy"][1, 2]) == 0.5
    luck = ((1 - (1 - 1 / 16) ** 2) + 1 / 16) / 2
    np.testing.assert_allclose(found.copy_null, luck)


@pytest.mark.parametrize("causal", [False, True])
def test_random_attention_copies_by_luck_only(causal):
    rng = np.random.default_rng(5)
    traces = [
        traced(random_attention(rng, 3, 6, 8, SIZE, causal=causal, spread=1), causal=causal)
        for _ in range(30)
    ]
    found = RetrievalHeads(threshold=0.2)(traces)
    assert float(found["copy"].mean()) == pytest.approx(float(found.copy_null.mean()), rel=0.15)
    assert float(found.evidence_lift.mean()) == pytest.approx(1, abs=0.03)
    assert found.heads_low.item() <= found.heads.item() <= found.heads_high.item()
    assert abs(found.heads.item() - found.heads_null.item()) < 3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [32, 256, 1024])
def test_random_attention_has_evidence_lift_one(size, causal):
    rng = np.random.default_rng(size)
    part = size // 4
    regions = [n for n in ("passage 1", "passage 2", "question", "answer") for _ in range(part)]
    prompt = 3 * part
    traces = [
        trace_of(
            random_attention(rng, 1, 2, 2, size, causal=causal, spread=0.3),
            causal=causal,
            regions=regions,
            prompt_length=prompt,
            events=[(0, prompt + i, 10 + i) for i in range(4)],
            gold="passage 1",
            shift=int(causal),
        )
        for _ in range(4 if size > 256 else 12)
    ]
    found = RetrievalHeads()(traces)
    margin = 2 * (found.evidence_high - found.evidence_low) + 1e-3
    assert (abs(found.evidence - found.evidence_null) < margin).all()
    assert (abs(found.evidence_lift - 1) < 0.1).all()
    assert found["copy"].max() < 0.5


def test_the_null_of_heads_is_what_random_keys_bring():
    """One example, two tokens of 1/16 each: a head reaches 0.1 with any hit."""
    found = RetrievalHeads()(traced(copying([8, 10, 5])))
    assert found.heads_null.item() == pytest.approx(12 * (1 - (15 / 16) ** 2), rel=0.05)
    assert np.isnan(found.heads_low.item())


def test_without_gold_the_score_is_nan_and_noted(tmp_path):
    found = RetrievalHeads()(traced(copying([8, 10, 5]), gold=""))
    assert found["copy"].isnull().all() and found.evidence.isnull().all()
    assert np.isnan(found.heads.item())
    assert "0 of 1 traces name a gold region" in found.data.attrs["gold"]
    assert_drawn(found.save_figure(tmp_path / "f.svg"))
    nothing = RetrievalHeads()(traced(copying([8, 10, 5]), answer=[70, 71, 72]))
    assert nothing["copy"].isnull().all() and nothing.evidence.notnull().all()
    assert nothing.data.attrs["copy"].startswith("0 of 1 answers")
    both = RetrievalHeads()([traced(copying([8, 10, 5])), traced(copying([8, 10, 5]), gold="")])
    assert float(both["copy"][1, 2]) == 1 and both.heads.item() == 1


def test_no_reveals_is_nan():
    trace = traced(copying([8, 10, 5]))
    found = RetrievalHeads()(fs.Trace(trace.data.isel(event=slice(0, 0))))
    assert found["copy"].isnull().all() and found.evidence.isnull().all()


def test_result_has_a_table_and_a_figure_and_other_traces_are_refused(tmp_path, llada):
    found = RetrievalHeads()([traced(copying([8, 10, 5], seed=s)) for s in range(3)])
    assert {"copy", "evidence", "heads"} == set(found.table()["value"])
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
    assert "strict copy" in (tmp_path / "f.svg").read_text()
    with pytest.raises(fs.TraceError, match="keep including 'rows'"):
        RetrievalHeads()(llada.trace("Hello there", fs.Confidence(length=4), keep=["mass"]))
    with pytest.raises(fs.UsageError, match="threshold"):
        RetrievalHeads(threshold=0)
