"""Attention entropy: exactly 1 where attention is uniform, 0 on one key, apart by kind of row."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, random_attention, trace_of

import floatscope as fs
from floatscope.measures.library.entropy import AttentionEntropy

SIZE = 16


def uniform(causal=False):
    sees = np.tril(np.ones((SIZE, SIZE))) if causal else np.ones((SIZE, SIZE))
    return np.broadcast_to(sees / sees.sum(1, keepdims=True), (2, 3, 2, SIZE, SIZE)).copy()


@pytest.mark.parametrize("causal", [False, True])
def test_uniform_attention_is_exactly_one(causal):
    found = AttentionEntropy()(trace_of(uniform(causal), causal=causal))
    np.testing.assert_allclose(found.entropy, 1, rtol=1e-12)
    np.testing.assert_allclose(found.by_head, 1, rtol=1e-12)
    np.testing.assert_allclose(found.entropy_null, 1)


def test_one_key_is_zero_in_the_head_it_was_planted_in():
    a = uniform()
    a[:, 1, 0] = np.eye(SIZE)[5]
    found = AttentionEntropy()(trace_of(a))
    expected = np.ones((3, 2))
    expected[1, 0] = 0
    np.testing.assert_allclose(found.by_head, expected, atol=1e-12)
    np.testing.assert_allclose(found.entropy, [1, 0.5, 1], atol=1e-12)


def test_rows_are_told_apart_by_their_state_at_the_step():
    """Masked rows look at one key, revealed ones at two, prompt rows everywhere."""
    canvas = np.tile(np.arange(10, 10 + SIZE), (3, 1))
    canvas[0, 8:], canvas[1, 12:] = MASK, MASK
    a = uniform()
    for t in range(2):
        masked = canvas[t] == MASK
        a[t, :, :, 8:] = (np.arange(SIZE) < 2) / 2
        a[t][:, :, masked] = np.eye(SIZE)[0]
    found = AttentionEntropy()(trace_of(a, prompt_length=8, canvas=canvas))
    np.testing.assert_allclose(found.masked, 0, atol=1e-12)
    np.testing.assert_allclose(found.revealed, np.log(2) / np.log(SIZE), atol=1e-12)
    np.testing.assert_allclose(found.prompt, 1, atol=1e-12)


def test_rows_that_are_not_there_are_nan():
    found = AttentionEntropy()(trace_of(uniform()))
    assert np.isnan(found.masked).all() and np.isnan(found.revealed).all()
    np.testing.assert_allclose(found.prompt, found.entropy)


def test_sharper_attention_has_less():
    rng = np.random.default_rng(0)
    flat, sharp = (
        AttentionEntropy()(trace_of(random_attention(rng, 1, 2, 2, SIZE, spread=s)))
        for s in (0.1, 3)
    )
    assert (flat.entropy > 0.99).all() and (sharp.entropy < 0.7).all()


def test_missing_statistics_are_named():
    with pytest.raises(fs.TraceError, match="keep including 'entropy_mean'"):
        AttentionEntropy()(fs.Trace(trace_of(uniform()).data.drop_vars("entropy")))


def test_result_has_a_tidy_table_and_a_figure(tmp_path):
    rng = np.random.default_rng(0)
    found = AttentionEntropy()([trace_of(random_attention(rng, 1, 3, 2, SIZE)) for _ in range(3)])
    table = found.table()
    assert (table["value"] == "by_head").sum() == 6
    row = table[(table["value"] == "entropy") & (table["layer"] == 0)].iloc[0]
    assert row["low"] < row["mean"] < row["high"] < row["null"] == 1
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
