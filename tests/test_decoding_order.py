"""Decoding order: left to right, from the ends, at random, remasked, in blocks; end tokens apart."""

import numpy as np
import pytest
from pictures import assert_drawn
from planted import MASK, trace_of

import floatscope as fs
from floatscope.measures.library.order import DecodingOrder


def revealed(order, *, prompt=4, tokens=None, block=None, ends=()):
    """A trace that reveals answer position order[t] at step t; ends=None: as an old version wrote it."""
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
    if ends is not None:
        trace.data.attrs["end_ids"] = list(ends)
    return trace


def from_the_ends(n):
    return [i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)]


def test_left_to_right_is_one_forwards_and_minus_one_backwards():
    found = DecodingOrder()(revealed(range(20)))
    assert found["left_to_right"].item() == pytest.approx(1)
    assert found["boundary"].item() == pytest.approx(0)
    assert found["left_to_right_null"].item() == 0
    np.testing.assert_allclose(found["map"].sel(time=0.5), [1] * 5 + [0] * 5, atol=1e-9)
    np.testing.assert_allclose(found["map_null"], np.arange(11) / 10)
    back = DecodingOrder()(revealed(list(range(20))[::-1]))
    assert back["left_to_right"].item() == pytest.approx(-1)


def test_a_decoding_from_the_ends_has_a_boundary_bias():
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
    assert found["unrevealed"].item() == pytest.approx(1 / 6)
    assert np.isnan(found["left_to_right"]) and np.isnan(found["boundary"])
    assert found["left_to_right_content"].item() == pytest.approx(1)
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
    with pytest.raises(fs.UsageError, match="but none for token"):
        DecodingOrder(frequencies=path)(revealed(range(8), tokens=[99] * 12))


END = 2


@pytest.fixture
def corpus(tmp_path):
    """Tokens 30 to 39 are frequent, all others rare; the corpus has no end token and no token 60."""
    table = np.full(64, 0.001)
    table[30:40], table[END], table[60] = 0.05, 0, 0
    np.save(tmp_path / "f.npy", table)
    return str(tmp_path / "f.npy")


def filled(first, corpus, **options):
    """Four content tokens, the first of them frequent, then twelve end tokens; `first` come first."""
    tokens = [9] * 4 + [30, 40, 41, 60] + [END] * 12
    order = [*first, *(i for i in range(16) if i not in first)]
    return DecodingOrder(corpus, **options)(revealed(order, tokens=tokens, ends=[END]))


def test_end_tokens_first_are_not_rare_tokens_first(corpus):
    """The last four places are filled with end tokens first: once that read "0 % trivial"."""
    found = filled([15, 14, 13, 12], corpus)
    assert found["ends_first"].item() == 1 and found["ends_first_null"].item() == 0.75
    assert found["end_or_trivial"].item() == 1
    # Of the four content tokens one is more frequent than their median.
    assert found["end_or_trivial_null"].item() == pytest.approx(13 / 16)
    assert found["unseen"].item() == 0.25
    assert found["boundary"].item() < 0  # three of the outer fifths' six places come first


def test_rare_content_tokens_first_are_not_ends_first(corpus):
    found = filled([3, 1, 2, 0], corpus)  # the rare before the frequent
    assert found["ends_first"].item() == 0 and found["end_or_trivial"].item() == 0.25
    assert found["trivial"].item() == 0 and found["trivial_null"].item() == 0.25
    assert filled([0, 1, 2, 3], corpus)["trivial"].item() == 1


def test_order_over_content_tokens_equals_the_order_without_end_tokens(corpus):
    """Ten content tokens from their ends, behind and before end tokens that came earlier or later."""
    content = np.array(from_the_ends(10)) + 5
    order = [0, 1, 2, 3, 4, *content, 15, 16, 17, 18, 19]
    tokens = [9] * 4 + [END] * 5 + list(range(40, 50)) + [END] * 5
    found = DecodingOrder()(revealed(order, tokens=tokens, ends=[END]))
    alone = DecodingOrder()(revealed(from_the_ends(10)))
    for name in ("boundary", "left_to_right"):
        assert found[f"{name}_content"].item() == pytest.approx(alone[name].item())
    assert abs(found["boundary"].item()) < 0.05


def test_early_stop_leaves_no_order_over_all_positions():
    """What is left masked lies behind the end token, wherever the sampler would have gone next."""
    order = [0, 1, 2, 3, 9, 8]
    trace = revealed(range(10), tokens=[9] * 4 + [40, 41, 42] + [END] * 7, ends=[END])
    trace.data["change"][:] = 0
    for t, place in enumerate(order):
        trace.data["change"][t, 4 + place] = 1
    found = DecodingOrder()(trace)
    assert np.isnan(found["boundary"]) and np.isnan(found["left_to_right"])
    assert found["unrevealed"].item() == pytest.approx(0.4)
    assert found["left_to_right_content"].item() == pytest.approx(1)


def test_without_end_ids_values_over_content_tokens_are_nan(corpus):
    """An older trace does not say which tokens end an answer; whoever measures can."""
    trace = revealed(range(16), tokens=[9] * 4 + [30, 40, 41, 42] + [END] * 12, ends=None)
    found = DecodingOrder(corpus)(trace)
    for name in ("ends_first", "trivial", "end_or_trivial", "boundary_content", "unseen"):
        assert np.isnan(found[name])
    assert found["boundary"].item() == pytest.approx(0)
    assert DecodingOrder(corpus, ends=(END,))(trace)["ends_first"].item() == 0


def test_a_decoding_without_early_stop_reveals_everything(llada):
    trace = llada.trace("Hello", fs.Confidence(length=10, stop_at_eos=False), keep=["entropy"])
    assert DecodingOrder()(trace)["unrevealed"].item() == 0
    assert trace.info["end_ids"] == list(llada.end_ids)


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
    assert set(found.table()["value"]) == set(DecodingOrder.units)
    for ending in ("svg", "pdf"):
        assert_drawn(found.save_figure(tmp_path / f"f.{ending}"))


def test_no_interval_leaves_the_range_of_an_order():
    """Three answers, all but one of which have as many content tokens, and as much order, as there can be."""
    import xarray as xr

    values = {
        "content": (6.0, 6.0, 1.0),
        "boundary": (-0.5, -0.5, 0.4),
        "left_to_right": (1.0, 1.0, 0.0),
    }
    each = [
        xr.Dataset({name: of[i] for name, of in values.items()}, attrs={"most": {"content": 6}})
        for i in range(3)
    ]
    data = DecodingOrder().summarise(each, "m").data
    assert data["content_high"] <= 6 and data["left_to_right_high"] <= 1
    assert data["boundary_low"] >= -0.5 and data["boundary_high"] <= 0.5
