"""Values on their way to their places: every part whole, whatever threads share it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from floatscope.recording import transfer


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_shares_are_all_parts_and_even(shapes, threads):
    parts = [(lambda values: values, np.zeros(shape, np.float32)) for shape in shapes]
    dealt = transfer.shares(parts, threads)
    assert 1 <= len(dealt) <= threads
    sizes = [sum(place.nbytes for _, place in share) for share in dealt]
    assert sum(sizes) == sum(place.nbytes for _, place in parts)
    row = max(place.nbytes // len(place) for _, place in parts)  # the least that a part is cut into
    assert max(sizes) <= sum(sizes) / threads * 2 + row
    for _, place in (piece for share in dealt for piece in share):
        place += 1
    assert all((place == 1).all() for _, place in parts)


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_of_all_kinds_arrive(threads):
    """Cut from the middle, as another type, one number everywhere, and computed on the way."""
    values = np.arange(4 * 50 * 8, dtype=np.float32).reshape(4, 50, 8)
    whole = np.full((50, 10), 7, np.float16)
    keys = np.zeros((4, 8), np.int32)
    parts = [
        (lambda x: x[1][:, 2:], whole[:, :6]),
        (lambda x: np.array(np.nan, np.float16), whole[:, 6:]),
        (lambda x: np.where(x[:, 0] > 100, x[:, 0], -1).astype(np.int64), keys),
    ]
    for share in transfer.shares(parts, threads):
        transfer._put(values, share)
    np.testing.assert_array_equal(whole[:, :6], values[1][:, 2:].astype(np.float16))
    assert np.isnan(whole[:, 6:]).all()
    np.testing.assert_array_equal(keys, np.where(values[:, 0] > 100, values[:, 0], -1))


def test_threads_that_move_leave_the_others_as_they_were():
    before = torch.get_num_threads()
    transfer._movers.cache_clear()
    with transfer._movers() as pool:
        assert set(pool.map(lambda _: torch.get_num_threads(), range(20))) == {1}
    transfer._movers.cache_clear()
    assert torch.get_num_threads() == before
