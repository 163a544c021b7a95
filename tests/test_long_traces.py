"""A long trace is in memory once: made, saved and packed for the viewer without a second copy."""

import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import unpacking

import floatscope as fs
from floatscope.models import tiny
from floatscope.recording.transfer import HostCopier
from floatscope.report.catalogue import Catalogue
from floatscope.scenes import codec, parts
from floatscope.scenes.pack import scene_of
from floatscope.trace import store


@contextmanager
def most():
    """Bytes of arrays and Python objects at the peak, beyond those before; one number, at the end."""
    peak = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


SHAPE = tiny.Shape(layers=6, width=64, heads=8, kv_heads=4)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A trace, and what it took to make."""
    model = fs.load(tiny.write("LLaDA", tmp_path_factory.mktemp("long") / "model", SHAPE))
    model.trace("Hello", fs.Confidence(length=64, steps=1))  # what is imported and kept is there
    with most() as peak:
        made = model.trace("Hello", fs.Confidence(length=64))
    return made, peak[0]


@pytest.fixture
def trace(traced):
    return traced[0]


def test_tracing_holds_the_trace_once(traced):
    trace, peak = traced
    assert trace.nbytes > 5e6
    assert peak < 1.25 * trace.nbytes


def test_saving_holds_a_few_chunks(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_CHUNK_BYTES", trace.nbytes // 64)
    trace.save(tmp_path / "first.zarr")
    with most() as peak:
        trace.save(tmp_path / "again.zarr")
    assert peak[0] < 0.2 * trace.nbytes


def test_a_scene_is_made_of_a_few_steps_at_a_time(trace, monkeypatch):
    with most() as at_once:
        whole = scene_of(trace, budget=400_000)
    monkeypatch.setattr(parts, "_BLOCK", trace.data["column_sum"].nbytes // 16)
    with most() as peak:
        assert scene_of(trace, budget=400_000) == whole
    assert peak[0] < 0.55 * trace.nbytes < at_once[0]


def test_packing_in_pieces_is_packing(monkeypatch):
    values = 10 ** np.random.default_rng(0).uniform(-9, 0, (40, 50))
    values[3, :7], values[5, 2] = np.nan, 0
    whole = codec.pack_log(values)
    monkeypatch.setattr(codec, "_PIECE", 17)
    assert codec.pack_log(values) == whole


def test_early_end_releases_unused_memory():
    """What was set aside for steps and positions that never came is let go."""
    arm = fs.load("pair/arm")
    prompts = [
        fs.Prompt.rag("Where was Ada born?", ["Ada was born in London.", "Bo: Rome."], gold=0),
        fs.Prompt.rag("Who?", ["Ada."], gold=0),
    ]
    traces = arm.trace(prompts, fs.Autoregressive(length=24))
    assert len({one.n_steps for one in traces}) == 2 and traces[0].info["ended"] == "eos"
    for one in traces:
        for name, array in one.data.data_vars.items():
            owner = array.values if array.values.base is None else array.values.base
            assert owner.nbytes == array.nbytes, name


def test_host_copier_fills_every_destination():
    place = np.full((2, 5), np.nan, np.float16)
    HostCopier(torch.device("cpu")).post_parts(
        torch.arange(6.0).reshape(2, 3), [(lambda values: values, place[:, 1:4])]
    )
    np.testing.assert_array_equal(place[:, 1:4], np.arange(6).reshape(2, 3))
    assert np.isnan(place[:, [0, 4]]).all()


def test_a_head_at_all_steps_and_all_heads_at_a_step_agree(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_CHUNK_BYTES", trace.nbytes // 64)
    trace.save(tmp_path / "t.zarr")
    catalogue = Catalogue.of(tmp_path)
    catalogue.budget = 500_000  # the steps fit, the single heads do not
    scene = catalogue.scene("t0")
    assert len(scene["steps"]) == 64 and scene["single_heads"] is None
    assert not any("single heads" in said for said in scene["left_out"])
    mass = trace.mass.transpose("step", "layer", "head", "key")
    way = catalogue.head("t0", 5, 6)
    shares = unpacking.unpack(way["share"])
    assert shares.shape == (64, 1, 1, mass.sizes["key"])
    np.testing.assert_allclose(shares[:, 0, 0], mass[:, 5, 6], rtol=2e-4)
    at = catalogue.heads("t0", 40)
    np.testing.assert_allclose(unpacking.unpack(at["share"])[0], mass[40], rtol=2e-4)
    assert (
        unpacking.unpack(way["anchors"])[40, 0, 0] == unpacking.unpack(at["anchors"])[0, 5, 6]
    ).all()
    for layer, head in ((6, 0), (0, 8), (-1, 0)):
        with pytest.raises(KeyError):
            catalogue.head("t0", layer, head)
