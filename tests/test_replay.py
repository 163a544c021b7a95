"""Forwards that are recorded and replayed: the same numbers as launched ones, when it pays, never a crash.

There is no GPU here: a stand-in does what a graph does, by running the recorded call again on the buffers
and writing into the tensors that it gave the first time. bench/gpu.py checks real ones, bit for bit.
"""

import gc
import weakref
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch
from transformers import masking_utils

import floatscope as fs
from floatscope.attention.cpu import norms
from floatscope.decode import replay, width
from floatscope.models import attention_hook, graphs, tiny
from floatscope.models.sharpened import sharpened
from floatscope.recording import finished

PROMPTS = ["Hello", "Something rather longer than the first", "abc"]
STEPS = 8
SMALL = tiny.Shape(layers=1, width=16, heads=2, kv_heads=1)


def fill(old, new):
    """Into what was given first goes what has come of it now; without a new one, nothing of use."""
    if isinstance(old, torch.Tensor):
        if new is None:
            old.fill_(-7 if old.dtype is not torch.bool else True)
        else:
            old.copy_(new)
    elif is_dataclass(old):
        for f in fields(old):
            fill(getattr(old, f.name), None if new is None else getattr(new, f.name))
    elif isinstance(old, dict):
        for name, value in old.items():
            fill(value, None if new is None else new[name])
    elif isinstance(old, list | tuple):
        for n, value in enumerate(old):
            fill(value, None if new is None else new[n])


class Again:
    """Records and replays on a CPU."""

    replays = records = 0

    def record(self, body):
        Again.records += 1
        self.body, self.result = body, body()
        fill(self.result, None)  # a recording computes nothing
        return self.result

    def replay(self):
        Again.replays += 1
        fill(self.result, self.body())


@pytest.fixture
def replaying(monkeypatch):
    Again.replays = Again.records = 0
    monkeypatch.setattr(replay, "usable", lambda model: model.graphs)
    monkeypatch.setattr(replay, "least_forwards", lambda *_: 4)
    monkeypatch.setattr(graphs, "new_graph", lambda store: Again())
    monkeypatch.setattr(graphs, "reserved", lambda: 0)
    monkeypatch.setattr(graphs, "free_memory", lambda: 1)
    monkeypatch.setattr(graphs, "_stores", weakref.WeakKeyDictionary())
    replay.notice.cache_clear()


def launched(model, run):
    model.graphs = False
    try:
        return run()
    finally:
        model.graphs = True


SAMPLERS = {
    "plain": fs.Confidence(length=8, steps=STEPS),
    "blocks": fs.Confidence(length=8, steps=STEPS, block_length=4),
    "guided": fs.Confidence(length=8, steps=STEPS, cfg=1.0, temperature=0.5),
    "adaptive": fs.samplers.Threshold(length=8, threshold=0.9),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("family", ["LLaDA", "Dream"])
def test_replayed_decodings_are_the_launched_ones(replaying, models, family, name):
    model, sampler = models[family], SAMPLERS[name]
    expected = launched(model, lambda: model.generate(PROMPTS, sampler))
    for one, other in zip(model.generate(PROMPTS, sampler), expected, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        np.testing.assert_array_equal(one.confidence, other.confidence)
    assert Again.replays > 2


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": "regions", "heads": [1, 3], "layers": [0, 2]}, {"steps": slice(0, None, 2)}],
    ids=["everything", "some heads", "some steps"],
)
def test_replayed_traces_are_the_launched_ones(replaying, models, options):
    """Every statistic of every step, of prompts of several lengths."""
    model, sampler = models["LLaDA"], SAMPLERS["plain"]
    keep = sorted(set(fs.statistics.STATISTICS) - {"lens", "kv_drift", "experts"})
    expected = launched(model, lambda: model.trace(PROMPTS, sampler, keep=keep, **options))
    found = model.trace(PROMPTS, sampler, keep=keep, **options)
    assert Again.replays > 2
    for one, other in zip(found, expected, strict=True):
        assert set(one.data.variables) == set(other.data.variables)
        for variable in other.data.variables:
            np.testing.assert_array_equal(one.data[variable], other.data[variable], variable)


def test_a_short_decoding_is_recorded_on_its_second_run(replaying, models):
    model, short = models["LLaDA"], fs.Confidence(length=3, steps=3, stop_at_eos=False)
    model.generate("Hello", short)
    assert (Again.records, Again.replays) == (0, 0)
    model.generate("Hello", short)  # three were launched before, three are to come
    assert (Again.records, Again.replays) == (1, 3)


def test_another_shape_gets_its_own_recording(replaying, models):
    model = models["LLaDA"]
    for prompt, records in (("Hello", 1), ("Hello, you", 2), ("Hello", 2)):
        model.generate(prompt, SAMPLERS["plain"])
        assert Again.records == records


def test_batches_of_about_the_same_length_share_a_recording(replaying, models, monkeypatch):
    """On a GPU their width is rounded up; a batch without padding stays without."""
    monkeypatch.setattr(width, "rounded_on", lambda model: True)
    model, sampler, keep = models["LLaDA"], SAMPLERS["plain"], ["mass", "entropy", "rows"]
    batches = [["Hello", "Hello you all"], ["Good", "Good morning to you"], ["Hello", "World"]]
    for batch, records in zip(batches, (1, 1, 2), strict=True):
        decodings = model.generate(batch, sampler)
        assert Again.records == records
        found = launched(model, lambda batch=batch: model.trace(batch, sampler, keep=keep))
        for prompt, one, decoding in zip(batch, found, decodings, strict=True):
            other = launched(model, lambda prompt=prompt: model.trace(prompt, sampler, keep=keep))
            np.testing.assert_array_equal(one.canvas, other.canvas)
            np.testing.assert_array_equal(decoding.canvas, other.canvas)
            for name in ("column_sum", "entropy", "row_weight"):
                np.testing.assert_allclose(one.data[name], other.data[name], 1e-5, 1e-6)
    shapes = {key[0][0] for key in graphs.store_of(model.net).recorded}
    assert {(2, 32 + 8), (2, 5 + 8)} <= shapes
    long = [model.encode([5] * n) for n in (3, model.context - 10)]
    assert width.columns(model, long, 8) == model.context - 8  # 504 would leave no room
    assert width.columns(model, long, 10) == model.context - 10


def test_recording_pays_where_launches_dominate(models):
    model = models["LLaDA"]
    few, many = (replay.least_forwards(model, tokens) for tokens in (16, 10**9))
    assert 2 <= few < 3 and many == float("inf")
    half = 0.5 * replay.OPERATIONS * model.n_layers * replay.LAYER / (2 * model.n_parameters)
    assert replay.least_forwards(model, round(half)) == pytest.approx(4, rel=0.01)
    assert replay.least_forwards(model, round(half), python_time=replay.LAYER) < 3


def test_no_graphs_without_cuda_nor_where_they_are_switched_off(models, monkeypatch):
    model = models["LLaDA"]
    assert model.graphs and not replay.usable(model)
    monkeypatch.setenv(graphs.SWITCH, "0")
    assert not graphs.allowed()
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert replay.usable(model)
    monkeypatch.setattr(model, "graphs", False)
    assert not replay.usable(model)


FIXED = {
    "sink": fs.interventions.SinkToken(token=5),
    "heads": fs.interventions.AblateHeads(heads=((0, 1), (2, 0)), steps=slice(0, 5)),
    "force": fs.interventions.ForceToken(position=1, token=9, step=3),
}


@pytest.mark.parametrize("name", FIXED)
def test_an_intervention_equal_at_every_step_is_replayed(replaying, models, name):
    model, sampler = models["LLaDA"], SAMPLERS["plain"]
    with FIXED[name](model):
        expected = launched(model, lambda: model.trace(PROMPTS, sampler, keep=["mass"]))
        found = model.trace(PROMPTS, sampler, keep=["mass"])
    assert Again.replays > 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.canvas, other.canvas)
        np.testing.assert_array_equal(one.mass, other.mass)


def test_an_intervention_that_depends_on_the_step_is_launched_with_a_notice(replaying, models):
    model, sampler = models["LLaDA"], SAMPLERS["plain"]
    with fs.interventions.MaskColumns(k=2)(model):
        with pytest.warns(
            UserWarning, match=r"the effect of MaskColumns\(k=2\) depends on the step"
        ):
            model.generate("Hello", sampler)
        model.generate("Hello", sampler)  # said once
    with pytest.warns(UserWarning, match="'lens'"):
        model.trace("Hello", sampler, keep=["lens"])

    def take_part(call, proceed):
        return proceed(call)

    with attention_hook.attach(model.net, take_part):
        with pytest.warns(UserWarning, match="take_part takes part in the forward"):
            model.generate("Hello", sampler)
    with pytest.warns(UserWarning, match="_take.<locals>.hook takes part"):
        model.activations("Hello", sampler, out="activations-of-a-replay", steps=0)
    assert Again.records == 0


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_recording_that_fails_is_launched(replaying, models, monkeypatch):
    model, sampler = models["LLaDA"], SAMPLERS["plain"]
    expected = launched(model, lambda: model.trace("Hello", sampler))

    class Failing(Again):
        def record(self, body):
            Again.records += 1
            body()
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "new_graph", lambda store: Failing())
    with pytest.warns(UserWarning, match="could not be recorded .RuntimeError.'operation not perm"):
        found = model.trace("Hello", sampler)
    assert Again.records == 1  # not tried again
    np.testing.assert_array_equal(found.mass, expected.mass)


def test_replaced_weights_release_the_recorded_graphs(replaying, tmp_path):
    model = fs.load(tiny.write("LLaDA", tmp_path / "one", SMALL), check=False)
    model.generate("Hello", SAMPLERS["plain"])
    store = graphs.store_of(model.net)
    assert len(store.recorded) == 1
    norm = model.net.model.norm
    norm.weight = torch.nn.Parameter(norm.weight.detach() * 2)
    moved = model.generate("Hello", SAMPLERS["plain"])
    expected = launched(model, lambda: model.generate("Hello", SAMPLERS["plain"]))
    np.testing.assert_array_equal(moved.confidence, expected.confidence)
    assert Again.records == 2
    store.bytes = 1  # of one byte that is free
    store.release_if_large()
    assert not store.recorded


def test_recordings_beyond_the_limit_are_evicted(replaying):
    store = graphs.Store()
    for n in range(graphs._MOST + 3):
        store.record(n, {"x": torch.zeros(2)}, lambda buffers: buffers["x"] + 1)
    assert list(store.recorded) == list(range(3, graphs._MOST + 3))
    assert store.recorded_graph(4).replay({"x": torch.ones(2)}).tolist() == [2, 2]
    assert list(store.recorded)[-1] == 4


def test_replayed_reads_are_the_launched_ones(replaying, models):
    """Texts and states of one size: the forward is recorded when it repeats, across calls."""
    model = models["LLaDA"]
    trace = model.trace("Hello", SAMPLERS["plain"])
    texts = ["one two", "abc def", "six ten", "the end"]

    def reads():
        found = [model.read(text) for text in texts]
        return [*found, model.read_states(trace), finished.replaying(model, trace)]

    expected = launched(model, reads)
    before = Again.replays
    for one, other in zip(reads(), expected, strict=True):
        assert set(one.data.variables) == set(other.data.variables)
        for name, array in other.data.variables.items():
            np.testing.assert_array_equal(one.data[name], array, err_msg=name)
    # The fourth text and the fourth state are the first that pay; the last reads go on replaying.
    assert Again.replays - before >= 1 + 2 + 5


def test_a_sharpened_control_is_replayed_too(replaying, models):
    """Its scales are read where they lie: other scales are another recording."""
    model = models["LLaDA"]
    trace = model.trace("Hello", SAMPLERS["plain"])
    plain = launched(model, lambda: finished.replaying(model, trace)).data["column_sum"]
    generator = torch.Generator().manual_seed(0)
    for scale in torch.randn(2, model.n_layers, model.n_heads, generator=generator):
        with sharpened(model, scale):
            expected = launched(model, lambda: finished.replaying(model, trace))
            before = Again.records, Again.replays
            found = finished.replaying(model, trace)
        assert Again.records == before[0] + 1 and Again.replays > before[1] + 2
        np.testing.assert_array_equal(found.data["column_sum"], expected.data["column_sum"])
        assert not np.array_equal(found.data["column_sum"], plain)


def test_reads_of_many_sizes_are_recorded_once_each(replaying, models, monkeypatch):
    """More sizes in turn than graphs are kept: one that has given way is not recorded again and again."""
    model = models["LLaDA"]
    monkeypatch.setattr(Again, "replay", lambda graph: None)  # what is read does not matter here
    for _ in range(8):
        for size in range(4, 4 + graphs._MOST + 2):
            model.read("x" * size, keep=("mass",))
    assert Again.records <= graphs._MOST + 2


def test_reads_of_causal_models_are_launched(replaying, models):
    for _ in range(6):
        models["Llama"].read("Hello there", keep=("mass",))
    assert Again.records == 0


def test_a_network_is_not_kept_by_its_graphs(replaying, models):
    """They are kept by the network: what they hold must not lead back to it."""
    model = models["LLaDA"]
    with fs.interventions.SinkToken(token=5)(model):
        model.trace("Hello", SAMPLERS["plain"])
    store = graphs.store_of(model.net)
    ((key, recorded),) = store.recorded.items()
    reached, new = set(), [key, recorded.buffers, recorded.result, *store.launched]
    while new:
        one = new.pop()
        if id(one) not in reached and not isinstance(one, type):
            reached.add(id(one))
            new += gc.get_referents(one)
            assert not isinstance(one, torch.nn.Module | fs.Model), type(one)
    assert len(reached) > 50


def test_no_mask_is_built_while_transformers_assumes_tracing(models, monkeypatch):
    """It does while a graph is recorded; a mask that hides nothing would cost SDPA its fast ways."""
    model, masks = models["LLaDA"], []
    monkeypatch.setattr(masking_utils, "is_tracing", lambda *_: True)

    def look(call, proceed):
        masks.append(call.mask)
        return proceed(call)

    ids = torch.arange(6)[None]
    with attention_hook.attach(model.net, look):
        logits = model.logits(ids)
    assert masks == [None] * model.n_layers
    monkeypatch.undo()
    assert torch.equal(logits, model.logits(ids))


def test_weights_that_count_no_changes_are_trusted_for_a_trace(models, monkeypatch):
    with torch.inference_mode():
        o_proj = torch.nn.Linear(16, 16, bias=False)
    module = torch.nn.Module()
    module.o_proj = o_proj
    calls, qr = [], torch.linalg.qr
    monkeypatch.setattr(torch.linalg, "qr", lambda *a, **k: calls.append(1) or qr(*a, **k))
    for trusted, expected in ((True, 1), (False, 2)):
        calls.clear()
        with norms.trusting([module] if trusted else []):
            for _ in range(2):
                norms._factor(module, 8)
        assert len(calls) == expected
    assert norms.versions([module]) is None
    assert norms.versions(attention_hook.attention_modules(models["LLaDA"].net)) is not None


class Broken:
    """A graph whose recording CUDA has ended: torch's own end stops at the error."""

    def __init__(self, failures):
        self.failures, self.calls = failures, []

    def capture_end(self):
        self.calls.append("end")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("operation failed due to a previous error during capture")

    def reset(self):
        self.calls.append("reset")


def test_a_failed_recording_is_cleaned_up_or_stops_all_recording(models, monkeypatch):
    """bench/gpu.py does it to a real one, draws random numbers and records again."""
    monkeypatch.setattr(graphs, "_given_up", [])
    monkeypatch.setattr(graphs, "_failed", [])
    plain = Broken(0)
    graphs._abandon(plain, None, torch.zeros(1))
    assert plain.calls == ["end", "reset"] and graphs.trusted()
    monkeypatch.setattr(graphs.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    stream = type("Stream", (), {"cuda_stream": 0})()
    with pytest.warns(UserWarning, match="this process records no more forwards"):
        graphs._abandon(Broken(1), stream, torch.zeros(1))
    assert not graphs.trusted() and len(graphs._failed) == 2  # kept: torch may still ask them
    model = models["LLaDA"]
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert not replay.usable(model)


def test_after_a_failure_the_next_recording_uses_a_new_pool(replaying, monkeypatch):
    class Failing:
        def record(self, body):
            raise RuntimeError("no")

    store = graphs.Store()
    store._pool = old = object()
    monkeypatch.setattr(graphs, "new_graph", lambda store: Failing())
    with pytest.raises(RuntimeError, match="no"):
        store.record("key", {}, lambda buffers: None)
    assert store._pool is not old and not store.recorded
