"""Decoding order: left to right, from the ends, at random, remasked, in blocks."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, trace_of

import floatscope as fs
from floatscope.measures.library.order import DecodingOrder


def revealed(order, *, prompt=4, tokens=None, block=None):
    """A trace that reveals answer position order[t] at step t."""
    n, size = len(order), prompt + len(order)
    tokens = np.arange(10, 10 + size) if tokens is None else np.asarray(tokens)
    canvas = np.tile(tokens, (n + 1, 1))
    for t in range(n + 1):
        canvas[t, prompt + np.asarray(order[t:], int)] = MASK
    a = np.full((n, 1, 1, size, size), 1 / size)
    trace = trace_of(a, prompt_length=prompt, canvas=canvas)
    if block is not None:
        starts = prompt + np.asarray(order) // block * block
        trace.data["block"][:] = np.stack([starts, starts + block], 1)
    return trace


def from_the_ends(n):
    return [i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)]


def test_left_to_right_and_back():
    found = DecodingOrder()(revealed(range(20)))
    assert found["left_to_right"].item() == pytest.approx(1)
    assert found["boundary"].item() == pytest.approx(0)
    assert found["left_to_right_null"].item() == 0
    np.testing.assert_allclose(found["map"].sel(time=0.5), [1] * 5 + [0] * 5, atol=1e-9)
    np.testing.assert_allclose(found["map_null"], np.arange(11) / 10)
    back = DecodingOrder()(revealed(list(range(20))[::-1]))
    assert back["left_to_right"].item() == pytest.approx(-1)


def test_from_the_ends():
    """The outer fifths take ranks 1 to 8 of 20, the rest 9 to 20: (4.5 − 14.5) / 20."""
    found = DecodingOrder()(revealed(from_the_ends(20)))
    assert found["boundary"].item() == pytest.approx(-0.5)
    assert found["boundary_null"].item() == 0
    assert abs(found["left_to_right"].item()) < 0.1


def test_a_random_order_finds_nothing():
    rng = np.random.default_rng(0)
    found = DecodingOrder()([revealed(rng.permutation(25)) for _ in range(40)])
    for name in ("boundary", "left_to_right"):
        assert found[f"{name}_low"] < 0 < found[f"{name}_high"]


def test_blocks_are_in_the_null():
    rng = np.random.default_rng(0)
    order = [np.concatenate([rng.permutation(5) + 5 * b for b in range(4)]) for _ in range(30)]
    found = DecodingOrder()([revealed(o, block=5) for o in order])
    assert found["left_to_right"] > 0.8
    # ranks vary by 24/12 within a block of 5 and by 399/12 in all 20
    assert found["left_to_right_null"].item() == pytest.approx(1 - 24 / 399)
    assert found["left_to_right"].item() == pytest.approx(1 - 24 / 399, abs=0.01)
    forced = DecodingOrder()(revealed(range(10), block=1))
    assert forced["left_to_right"].item() == pytest.approx(forced["left_to_right_null"].item())


def test_the_last_reveal_counts_and_never_is_nan():
    trace = revealed(range(6))
    trace.data["change"][3, 4] = 2  # the first answer position is masked again …
    trace.data["change"][5, 4] = 1  # … and comes back with the last
    found = DecodingOrder()(trace)
    ranks = np.array([5.5, 1, 2, 3, 4, 5.5])
    assert found["left_to_right"].item() == pytest.approx(np.corrcoef(np.arange(6), ranks)[0, 1])
    trace.data["change"][5, 4] = 0
    found = DecodingOrder()(trace)
    assert found["left_to_right"].item() == pytest.approx(1)
    assert found["map"].sel(time=1.0).values[0] == 0


def test_trivial_tokens(tmp_path):
    """Frequent tokens first: all of the first quarter; a random order: half."""
    path = tmp_path / "f.npy"
    table = np.full(64, 0.001)
    table[30:40] = 0.05
    np.save(path, table)
    tokens = [9, 9, 9, 9, *range(30, 40), *range(40, 50)]
    found = DecodingOrder(frequencies=str(path))(revealed(range(20), tokens=tokens))
    assert found["trivial"].item() == 1 and found["trivial_null"].item() == 0.5
    back = DecodingOrder(frequencies=str(path))(revealed(list(range(20))[::-1], tokens=tokens))
    assert back["trivial"].item() == 0
    assert np.isnan(DecodingOrder()(revealed(range(20)))["trivial"])
    with pytest.raises(fs.UsageError, match="cannot be read"):
        DecodingOrder(frequencies=tmp_path / "none.npy")(revealed(range(20)))
    with pytest.raises(fs.UsageError, match="has none"):
        DecodingOrder(frequencies=path)(revealed(range(8), tokens=[99] * 12))


def test_all_at_once_has_no_order():
    trace = revealed(range(6))
    trace.data["change"][:] = 0
    trace.data["change"][0, 4:] = 1
    found = DecodingOrder()(trace)
    assert np.isnan(found["left_to_right"])
    assert found["boundary"].item() == 0


def test_result_has_a_tidy_table_and_a_figure(tmp_path, llada):
    """Any trace will do, whatever it kept."""
    prompts = ["Hello there", "Hello you", "Hello"]
    traces = [llada.trace(p, fs.Confidence(length=10), keep=["entropy"]) for p in prompts]
    found = DecodingOrder()(traces)
    assert set(found.table()["value"]) == {"map", "boundary", "left_to_right", "trivial"}
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))
