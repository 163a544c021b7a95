"""Values on their way to their places: every part whole, whatever threads share it."""

import gc

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import floatscope as fs
from floatscope.recording import host_memory, kept, transfer
from floatscope.recording.host_memory import HostMemory


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_shares_cover_all_parts_evenly(shapes, threads):
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
        transfer._copy_parts(values, share)
    np.testing.assert_array_equal(whole[:, :6], values[1][:, 2:].astype(np.float16))
    assert np.isnan(whole[:, 6:]).all()
    np.testing.assert_array_equal(keys, np.where(values[:, 0] > 100, values[:, 0], -1))


def test_mover_threads_leave_other_thread_counts_unchanged():
    before = torch.get_num_threads()
    transfer._movers.cache_clear()
    with transfer._movers() as pool:
        assert set(pool.map(lambda _: torch.get_num_threads(), range(20))) == {1}
    transfer._movers.cache_clear()
    assert torch.get_num_threads() == before


def test_unreferenced_memory_is_reused():
    memory = HostMemory(64 << 20)
    kind = np.dtype(np.float32)
    one = memory.empty((2 << 20,), kind)
    where = one.ctypes.data
    part = one.reshape(2, -1)[1, 5:]  # a view of a view keeps all of it
    del one
    gc.collect()
    assert memory.free() == 0
    other = memory.empty((2 << 20,), kind)
    assert not np.shares_memory(other, part)
    part[:] = 7
    del part
    gc.collect()
    assert memory.free() == 8 << 20
    again = memory.empty((1024, 2000), kind)  # a little smaller
    assert again.ctypes.data == where
    assert memory.free() == 0
    assert memory.empty((1100, 1000), kind).ctypes.data != where  # far smaller, and taken


def test_reused_memory_is_pinned():
    """Once, up to the limit, and no longer than it is there."""
    pinned = {}
    memory = HostMemory(20 << 20, lambda at, n: pinned.setdefault(at, n) == n, pinned.pop)

    def empty(megabytes):
        gc.collect()
        return memory.empty((megabytes << 20,), np.dtype(np.uint8))

    first = empty(8)
    assert not pinned
    where = first.ctypes.data
    del first
    again = empty(8)
    assert pinned == {where: 8 << 20}
    other = empty(10)
    there = other.ctypes.data
    del other
    other = empty(10)
    assert pinned == {where: 8 << 20, there: 10 << 20}
    wide = empty(11)
    del again, wide  # of 19 MB that are free, 8 are pinned: too many, with these, for 11 more
    wide = empty(11)
    assert pinned == {there: 10 << 20}
    assert memory.pinned == 10 << 20
    del other, wide
    rest = [empty(7), empty(7)]  # the blocks of 10 and 8: too large
    del rest
    gc.collect()
    assert memory.free() <= 20 << 20
    assert memory.pinned == sum(pinned.values()) <= 20 << 20


def test_small_arrays_count_as_pinned_until_released():
    given = []

    def small(size):
        given.append(size)
        return np.frombuffer(bytearray(size), np.uint8)

    memory, kind = HostMemory(3 << 20, lambda at, n: True, None, small), np.dtype(np.float32)
    one = memory.empty((256, 1024), kind)
    part = one[3:, 5]  # a view keeps all of it
    del one
    other = memory.empty((512, 1024), kind)
    assert given == [1 << 20, 2 << 20]
    assert memory.pinned == 3 << 20
    assert memory.empty((8,), kind).base is None  # beyond the limit: ordinary memory
    assert memory.pinned == 3 << 20
    del part, other
    gc.collect()
    last = memory.empty((8,), kind)
    assert (len(given), memory.pinned, last.shape) == (3, 32, (8,))


def test_memory_that_cannot_be_pinned_stays_usable():
    memory = HostMemory(20 << 20, lambda at, n: False, None)
    for _ in range(2):
        memory.empty((8 << 20,), np.dtype(np.uint8))[:] = 1
        gc.collect()
        assert (memory.pinned, memory.free()) == (0, 8 << 20)


def test_machine_memory_respects_the_container_limit(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host_memory, "_LIMIT", limit)
    whole = host_memory.machine_memory()
    limit.write_text("max\n")
    assert host_memory.machine_memory() == whole
    limit.write_text(f"{whole // 2}\n")
    assert host_memory.machine_memory() == whole // 2


def test_free_memory_stays_within_its_limit():
    memory, kind = HostMemory(20 << 20), np.dtype(np.uint8)
    for _ in range(2):
        some = [memory.empty((8 << 20,), kind) for _ in range(4)]
        del some
        gc.collect()
        assert memory.free() == 16 << 20
    none = HostMemory(0)
    assert none.empty((8 << 20,), kind).base is None


@pytest.mark.parametrize(("said", "share"), [("0", 0), ("0.5", 0.5), ("1", 1)])
def test_memory_share_follows_the_environment_variable(monkeypatch, said, share):
    monkeypatch.setenv("FLOATSCOPE_HOST_MEMORY", said)
    assert host_memory.share() == share


@pytest.mark.parametrize("said", ["7", "-1", "much", "nan"])
def test_invalid_memory_share_gives_a_warning(monkeypatch, said):
    monkeypatch.setenv("FLOATSCOPE_HOST_MEMORY", said)
    with pytest.warns(UserWarning, match="not a number from 0 to 1"):
        assert host_memory.share() == 0.25


@pytest.mark.parametrize("name", ["LLaDA", "Llama"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_records_cut_on_the_device_give_the_same_trace(models, monkeypatch, name, dtype):
    """Unequal prompts, which are padded and have other regions; rows are sent in several lots."""
    model = models[name]
    prompts = [
        fs.Prompt((fs.Part("premise", "All cats sleep."), fs.Part("question", " Do they?"))),
        fs.Prompt((fs.Part("question", "Why?"),)),
    ]
    sampler = fs.Confidence(length=12, steps=6)
    if not model.is_diffusion:
        sampler = fs.Autoregressive(length=6, stop_at_eos=False)
    usual = model.trace(prompts, sampler, dtype=dtype)
    monkeypatch.setattr(kept, "_MOST_ROWS", 1 << 12)
    cut = model.trace(prompts, sampler, dtype=dtype)
    for one, other in zip(usual, cut, strict=True):
        xr.testing.assert_identical(one.data, other.data)
