"""Traces that are written while they are recorded: the same in the end, a few steps in memory, and what is
there when the writer is ended opens."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import floatscope as fs
from floatscope.recording.streaming import Stream
from floatscope.trace.unfinished import PROGRESS

PROMPTS = ["Hello", "Something rather longer than the first"]


@pytest.mark.parametrize("family", ["LLaDA", "Llama"])
def test_a_streamed_trace_is_the_one_in_memory(models, family, tmp_path):
    model = models[family]
    sampler = (
        fs.Confidence(length=6, steps=6) if model.is_diffusion else fs.Autoregressive(length=6)
    )
    expected = model.trace(PROMPTS, sampler, keep=None)
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    found = model.trace(PROMPTS, sampler, to=paths)
    for one, other, path in zip(found, expected, paths, strict=True):
        xr.testing.assert_identical(one.data.load(), other.data)
        assert PROGRESS not in (path / "zarr.json").read_text()
        xr.testing.assert_identical(fs.Trace.load(path).data, other.data)


def test_what_an_ended_writer_leaves_opens(llada, tmp_path, monkeypatch):
    """Its directory in the middle of a decoding is what kill -9 would leave."""
    sampler, held, begin = fs.Confidence(length=8, steps=8), [], Stream.begin

    def counted(stream, step):
        begin(stream, step)
        held.append(len(stream._steps))

    def copied(done, of):
        if done == 6:
            left.mkdir()
            shutil.copy(path / "zarr.json", left)  # first: what it says is there is there
            for one in filter(Path.is_dir, path.iterdir()):
                shutil.copytree(one, left / one.name)

    monkeypatch.setattr(Stream, "begin", counted)
    path, left = tmp_path / "t.zarr", tmp_path / "left.zarr"
    whole = llada.trace("Hello", sampler, to=path, progress=copied)
    assert max(held) <= 2  # steps in memory
    with pytest.warns(UserWarning, match=r"left.zarr was not finished: [2-6] of 8 steps are there"):
        part = fs.Trace.load(left)
    n = part.data.sizes["step"]
    assert part.info["ended"] == "unfinished" and part.info["model"] == whole.info["model"]
    np.testing.assert_array_equal(part.mass, whole.mass[:n])
    np.testing.assert_array_equal(part.data["entropy"], whole.data["entropy"][:n])
    np.testing.assert_array_equal(part.canvas, whole.canvas[:n])
    np.testing.assert_array_equal(part.data["masked"], whole.data["masked"][:n])
    assert f"({n} kept)" in repr(part)


def test_paths_that_do_not_fit_are_refused_before_anything_runs(llada, tmp_path):
    (tmp_path / "there").mkdir()
    sampler = fs.Confidence(length=4, steps=2)
    with pytest.raises(fs.TraceError, match="there exists"):
        llada.trace("Hello", sampler, to=tmp_path / "there")
    for prompts, to in ((PROMPTS, "one.zarr"), (PROMPTS, ["a", "a"]), ("Hello", ["a"])):
        with pytest.raises(fs.UsageError, match="to = "):
            llada.trace(prompts, sampler, to=to)
