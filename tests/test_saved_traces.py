"""Saving and loading: whole or not at all, and damage is an error that says so."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import xarray as xr
from tiny_models import FAMILIES, sampler_for

import floatscope as fs

ROUGH = fs.Prompt.rag('<script>alert("ü")</script>', ["naïve 漢字 \n tab\t", "p2"], gold=1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_loaded_trace_equals_the_saved_one(models, family, dtype, tmp_path):
    trace = models[family].trace(ROUGH, sampler_for(models[family]), dtype=dtype)
    path = trace.save(tmp_path / "t.zarr")
    for lazy in (False, True):
        again = fs.Trace.load(path, lazy=lazy)
        xr.testing.assert_identical(again.data.load(), trace.data)
        assert again.mass.equals(trace.mass)
        assert (again.text, again.raw_text) == (trace.text, trace.raw_text)
        assert again.info["gold"] == "passage 2"
        assert repr(again) == repr(trace)


def test_float16_keeps_its_digits(llada):
    """Sums, not shares, are stored: half the bytes for three digits."""
    sampler = fs.Confidence(length=8, steps=4)
    wide, narrow = (llada.trace("Hello " * 40, sampler, dtype=d) for d in ("float32", "float16"))
    np.testing.assert_allclose(narrow.mass, wide.mass, rtol=2e-3, atol=1e-7)
    assert narrow.mass.dtype == np.float32
    assert narrow.data["column_sum"].nbytes * 2 == wide.data["column_sum"].nbytes


def test_loading_needs_no_model_and_no_torch(llada, tmp_path):
    path = llada.trace("Hi", fs.Confidence(length=4, steps=2)).save(tmp_path / "t.zarr")
    code = f"""
        import sys, floatscope as fs
        trace = fs.Trace.load({str(path)!r})
        assert abs(float(trace.mass.sum("key").mean()) - 1) < 1e-5
        print(repr(trace))
        assert "torch" not in sys.modules, "torch was imported"
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], check=True)


def test_the_store_is_plain_zarr_3(llada, tmp_path):
    """Another reader sees named arrays and coordinates, without us and without a warning."""
    trace = llada.trace("Hi", fs.Confidence(length=4, steps=2))
    path = trace.save(tmp_path / "t.zarr")
    assert json.loads((path / "zarr.json").read_text())["zarr_format"] == 3
    data = xr.open_zarr(path, consolidated=False, chunks=None)
    np.testing.assert_array_equal(data["column_sum"], trace.data["column_sum"])
    assert data["token"].values.tolist() == trace.data["token"].values.tolist()


def test_existing_path_is_not_overwritten_by_default(llada, tmp_path):
    first = llada.trace("Hi", fs.Confidence(length=4, steps=2))
    other = llada.trace("Ho", fs.Confidence(length=4, steps=4))
    path = first.save(tmp_path / "t.zarr")
    with pytest.raises(fs.TraceError, match="exists"):
        other.save(path)
    assert fs.Trace.load(path).n_steps == 2
    other.save(path, overwrite=True)
    assert fs.Trace.load(path).n_steps == 4
    assert [p.name for p in tmp_path.iterdir()] == ["t.zarr"]


@pytest.fixture
def saved(llada, tmp_path):
    return llada.trace("Hi", fs.Confidence(length=4, steps=2)).save(tmp_path / "t.zarr")


def test_damaged_store_is_refused(saved):
    chunk = next(p for p in (saved / "column_sum" / "c").rglob("*") if p.is_file())
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-3])
    with pytest.raises(fs.TraceError, match="missing or cut short"):
        fs.Trace.load(saved)
    chunk.write_bytes(bytes([whole[0] ^ 255]) + whole[1:])
    with pytest.raises(fs.TraceError, match="has changed since"):
        fs.Trace.load(saved)
    chunk.unlink()  # zarr itself would read zeros here
    for lazy in (False, True):
        with pytest.raises(fs.TraceError, match="missing or cut short"):
            fs.Trace.load(saved, lazy=lazy)


def test_a_folder_that_is_no_trace_is_refused(saved, tmp_path):
    with pytest.raises(fs.TraceError, match="no trace at"):
        fs.Trace.load(tmp_path / "nowhere.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(fs.TraceError, match="not a Floatscope trace"):
        fs.Trace.load(tmp_path / "empty")
    text = (saved / "zarr.json").read_text()
    (saved / "zarr.json").write_text(text[: len(text) // 2])
    with pytest.raises(fs.TraceError, match="or was cut short"):
        fs.Trace.load(saved)


def test_a_trace_of_another_schema_is_refused(saved):
    root = json.loads((saved / "zarr.json").read_text())
    root["attributes"]["floatscope_schema"] = 99
    (saved / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(fs.TraceError, match="schema 99; this version of Floatscope reads schema 2"):
        fs.Trace.load(saved)


def test_a_full_disk_leaves_nothing_behind(llada, tmp_path):
    """A real limit on file size, set by the kernel, stops the write in the middle."""
    trace = llada.trace("Hello " * 40, fs.Confidence(length=8, steps=8))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(fs.TraceError, match="could not be written: File too large"):
            trace.save(tmp_path / "t.zarr")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(llada, tmp_path, monkeypatch):
    trace = llada.trace("Hi", fs.Confidence(length=4, steps=2))
    right = xr.Dataset.to_zarr

    def interrupted(self, path, *args, **kwargs):
        right(self, path, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C after most of it is on disk

    monkeypatch.setattr(xr.Dataset, "to_zarr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace.save(tmp_path / "t.zarr")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named(llada, tmp_path):
    (tmp_path / "file").write_text("x")
    trace = llada.trace("Hi", fs.Confidence(length=4, steps=2))
    with pytest.raises(fs.TraceError, match="could not be written"):
        trace.save(tmp_path / "file" / "t.zarr")


def test_trace_summary_names_its_contents(llada):
    text = repr(llada.trace(ROUGH, fs.Confidence(length=4, steps=2)))
    for word in (
        "2 steps",
        "3 layers",
        "4 heads",
        "passage 1",
        "column_sum",
        "kB",
        "Confidence(length=4",
    ):
        assert word in text


def test_a_saved_trace_has_named_coordinates(llada):
    trace = llada.trace(ROUGH, fs.Confidence(length=4, steps=2))
    mass = trace.mass
    assert mass.dims == ("step", "layer", "head", "key")
    assert {"token", "final_token", "region", "token_class", "masked"} <= set(mass.coords)
    start = int(trace.info["prompt_length"])
    assert mass["region"].values[start:].tolist() == ["answer"] * 4
    assert mass["masked"].values[0, start:].all()
    assert not mass["masked"].values[:, :start].any()
    assert mass["masked"].values[1].sum() == 2
    assert set(mass["token_class"].values[0, start:]) == {"mask"}
    question = mass.where(mass["region"] == "question", drop=True)
    assert "".join(question["final_token"].values.tolist()).startswith(" <script>")
    assert "".join(question["token"].values[1].tolist()).startswith(" <script>")


def test_an_unknown_group_names_the_known(llada):
    trace = llada.trace("Hi", fs.Confidence(length=4, steps=2))
    with pytest.raises(fs.TraceError, match="It has: masked, revealed, prompt"):
        trace.mass_from("passage 9")
