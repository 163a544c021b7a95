"""Decodings with a KV cache of fixed size, recorded and replayed: the numbers of a cache that grows.

There is no GPU here: a stand-in does what a graph does (`test_replay`). bench/gpu.py checks real ones.
"""

import numpy as np
import pytest
from test_replay import Again, launched
from test_replay import replaying as _replaying  # noqa: F401

import floatscope as fs
from floatscope.decode import fixed_cache, replay
from floatscope.decode.fixed_cache import room_for
from floatscope.models import attention_hook, graphs, tiny

PROMPTS = ["Hello", "Something rather longer than the first", "abc"]
LOOKED_AT = sorted(set(fs.statistics.STATISTICS) - {"lens", "kv_drift", "experts"})
ONE_BY_ONE = fs.Autoregressive(length=34, stop_at_eos=False)  # from 38 to 72 columns
IN_BLOCKS = {"direction": "block-causal", "block": 4, "mask_id": tiny.MASK, "shift": 0}
RULES = {
    "start": {"grid": "start"},
    "shifted": {"grid": "padded", "shift": 1},
    "active": {"grid": "padded", "direction": "active-block"},
}


class Kept(Again):
    """Rooms are as they were after a recording, which runs nothing."""

    def __init__(self, store):
        self.store = store

    def record(self, body):
        rooms = [one for room in self.store.in_use for one in room.tensors()]
        before = [one.clone() for one in rooms]
        try:
            return super().record(body)
        finally:
            for one, old in zip(rooms, before, strict=True):
                one.copy_(old)


@pytest.fixture
def replaying(_replaying, monkeypatch):  # noqa: F811
    monkeypatch.setattr(graphs, "new_graph", Kept)
    monkeypatch.setattr(graphs, "free_memory", lambda: 10**12)
    monkeypatch.setattr(fixed_cache, "_STEP", 16)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cached")
    shape = tiny.Shape(layers=2, width=32, heads=4, kv_heads=2, context=128)
    return {name: tiny.write(name, folder / name, shape) for name in ("Llama", "Qwen3")}


@pytest.fixture(scope="module")
def causal(paths):
    return fs.load(paths["Llama"], dtype="float64", check=False)


def same_tokens(some, others):
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        np.testing.assert_array_equal(one.confidence, other.confidence)


def same_traces(found, expected):
    """Numbers to rounding, everything else as it is."""
    for one, other in zip(found, expected, strict=True):
        assert set(one.data.variables) == set(other.data.variables)
        for name in other.data.variables:
            a, b = one.data[name].values, other.data[name].values
            if b.dtype.kind == "f":
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(a, b, name)


def test_the_fixed_cache_is_no_larger_than_the_decoding_needs():
    assert [room_for(n, 5000) for n in (10, 256, 257, 1025)] == [256, 256, 512, 2048]
    assert room_for(513, 640) == 768 and room_for(4097, 5000) == 5120
    assert room_for(700, 600) == 768  # a prompt that was given more than was said


SOME = {"groups": "regions", "heads": [1, 3], "layers": [1], "steps": slice(0, None, 3)}


@pytest.mark.parametrize("options", [{}, SOME], ids=["everything", "some"])
def test_replayed_causal_traces_are_the_launched_ones(replaying, causal, options):
    """Every statistic of every step, of prompts of several lengths, from one room into the next."""
    expected = launched(
        causal, lambda: causal.trace(PROMPTS, ONE_BY_ONE, keep=LOOKED_AT, **options)
    )
    found = causal.trace(PROMPTS, ONE_BY_ONE, keep=LOOKED_AT, **options)
    assert Again.replays > 20 and Again.records == 2
    same_traces(found, expected)


def test_watching_and_replaying_do_not_change_the_path(replaying, causal, monkeypatch):
    """Bit for bit, since all take the cache of fixed size: so does what cannot be recorded."""
    plain = causal.generate(PROMPTS, ONE_BY_ONE)
    records = Again.records
    same_tokens(causal.generate(PROMPTS, ONE_BY_ONE), plain)
    assert records == Again.records == 2  # the second time there was nothing to record
    same_tokens(causal.trace(PROMPTS, ONE_BY_ONE), plain)
    with pytest.warns(UserWarning, match="'lens'"):
        same_tokens(causal.trace(PROMPTS, ONE_BY_ONE, keep=["lens", "kv_drift"]), plain)
    monkeypatch.setattr(replay, "least_forwards", lambda *_: float("inf"))
    store = graphs.store_of(causal.net)
    store.forget()
    same_tokens(causal.generate(PROMPTS, ONE_BY_ONE), plain)
    assert not store.recorded and store.rooms and not store.in_use
    short = causal.generate(PROMPTS, fs.Autoregressive(length=2, stop_at_eos=False))
    for one, other in zip(short, plain, strict=True):
        np.testing.assert_array_equal(one.confidence[:2, -2:], other.confidence[:2, -34:-32])


def test_an_end_token_seen_one_forward_late_changes_nothing(
    replaying, causal, monkeypatch, tmp_path
):
    """The next forward is on its way before anybody looks: what it saw is left out, in a store too."""
    free = causal.generate(PROMPTS[0], fs.Autoregressive(length=12, stop_at_eos=False))
    tokens = free.canvas[-1, -12:]
    last = next(n for n in range(4, 12) if tokens[n] not in tokens[:n])
    monkeypatch.setattr(causal, "end_ids", (int(tokens[last]),))
    sampler = fs.Autoregressive(length=12)
    expected = launched(causal, lambda: causal.trace(PROMPTS[0], sampler, keep=LOOKED_AT))
    assert len(expected.data.step) == last + 1
    before = Again.replays
    found = causal.trace(PROMPTS[0], sampler, keep=LOOKED_AT)
    assert Again.replays - before == last  # two are launched, and one is too many
    same_traces([found], [expected])
    graphs.store_of(causal.net).forget()  # the stand-in knows but one who looks on
    stored = causal.trace(PROMPTS[0], sampler, keep=LOOKED_AT, to=tmp_path / "t.zarr")
    same_traces([stored], [expected])
    plain = causal.generate(PROMPTS[0], sampler)
    np.testing.assert_array_equal(plain.canvas, expected.canvas)


@pytest.mark.parametrize("rule", RULES)
def test_replayed_traces_in_blocks_are_the_launched_ones(replaying, paths, rule):
    model = fs.load(paths["Qwen3"], dtype="float64", check=False, **IN_BLOCKS | RULES[rule])
    sampler = fs.Confidence(length=14, stop_at_eos=False)
    options = {"keep": LOOKED_AT, "cache": "exact"}
    expected = launched(model, lambda: model.trace(PROMPTS, sampler, **options))
    found = model.trace(PROMPTS, sampler, **options)
    assert Again.replays > 4
    same_traces(found, expected)
    same_tokens(model.generate(PROMPTS, sampler, cache="exact"), found)


def test_prompts_that_end_early_leave_the_room_to_the_others(replaying, paths):
    model = fs.load(paths["Qwen3"], dtype="float64", check=False, **IN_BLOCKS)
    sampler = fs.samplers.Threshold(length=16, threshold=0.05, stop_at_eos=False)
    options = {"keep": [*LOOKED_AT, "kv_drift"], "cache": "exact"}
    expected = launched(model, lambda: model.trace(PROMPTS, sampler, **options))
    assert len({one.n_steps for one in expected}) > 1
    with pytest.warns(UserWarning, match="kv_drift"):
        same_traces(model.trace(PROMPTS, sampler, **options), expected)


def test_fixed_interventions_are_replayed_and_others_launched(replaying, causal):
    heads = fs.interventions.AblateHeads(heads=((0, 1), (1, 0)), steps=slice(0, 9))
    with heads(causal):
        expected = launched(causal, lambda: causal.trace(PROMPTS, ONE_BY_ONE, keep=["mass"]))
        found = causal.trace(PROMPTS, ONE_BY_ONE, keep=["mass"])
    assert Again.replays > 20
    same_traces(found, expected)
    replays = Again.replays
    with fs.interventions.MaskColumns(k=2)(causal):
        expected = launched(causal, lambda: causal.generate("Hello", ONE_BY_ONE))
        with pytest.warns(
            UserWarning, match=r"the effect of MaskColumns\(k=2\) depends on the step"
        ):
            found = causal.generate("Hello", ONE_BY_ONE)
    same_tokens([found], [expected])
    assert Again.replays == replays


def test_a_hook_handler_sees_only_the_filled_keys(replaying, causal):
    keys = []

    def look(call, proceed):
        keys.append(call.key.shape[2])
        return proceed(call)

    with (
        attention_hook.attach(causal.net, look),
        pytest.warns(UserWarning, match="look takes part"),
    ):
        causal.generate("Hello", fs.Autoregressive(length=3, stop_at_eos=False))
    assert keys == [5, 5, 6, 6, 7, 7]


def test_an_intervention_that_begins_to_depend_on_the_step_is_launched_from_there(
    replaying, causal, monkeypatch
):
    with fs.interventions.AblateHeads(heads=((0, 1),))(causal):
        expected = launched(causal, lambda: causal.trace("Hello", ONE_BY_ONE, keep=LOOKED_AT))
        (edit,) = causal.edits
        monkeypatch.setattr(edit, "same_forward", lambda state: None if state.step > 9 else ())
        with pytest.warns(UserWarning, match="depends on the step"):
            found = causal.trace("Hello", ONE_BY_ONE, keep=LOOKED_AT)
    assert 5 < Again.replays < 12
    same_traces([found], [expected])


def test_a_recording_that_fails_leaves_the_sums_as_they_were(replaying, causal, monkeypatch):
    class Failing(Kept):
        def replay(self):
            raise AssertionError("nothing was recorded")

        def record(self, body):
            super().record(body)
            raise RuntimeError("operation not permitted when stream is capturing")

    expected = launched(causal, lambda: causal.trace("Hello", ONE_BY_ONE))
    monkeypatch.setattr(graphs, "new_graph", Failing)
    with pytest.warns(UserWarning, match="could not be recorded .RuntimeError"):
        same_traces([causal.trace("Hello", ONE_BY_ONE)], [expected])
    assert Again.records == 3  # one for each room


def test_a_decoding_inside_another_has_a_room_of_its_own(replaying, causal):
    """And one that is broken off leaves no handler at the attention hook."""
    expected, inside = causal.generate("Hello", ONE_BY_ONE), []

    def again(done, total):
        if done == 12:
            inside.append(causal.generate("Hello", ONE_BY_ONE))

    same_tokens([causal.generate("Hello", ONE_BY_ONE, progress=again)], [expected])
    same_tokens(inside, [expected])

    def stop(done, total):
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        causal.generate("Hello", ONE_BY_ONE, progress=stop)
    assert not attention_hook.attached_handlers(attention_hook.attention_modules(causal.net))
    assert not graphs.store_of(causal.net).in_use
    same_tokens([causal.generate("Hello", ONE_BY_ONE)], [expected])
