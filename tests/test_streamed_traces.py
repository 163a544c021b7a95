"""Traces that are written while they are recorded: the same in the end, a few steps in memory, and what is
there when the writer is ended opens."""

import os
import signal
import sys
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from waiting import until

import floatscope as fs
from floatscope.recording import kept
from floatscope.recording.kept import StoredSteps
from floatscope.trace import unfinished
from floatscope.trace.unfinished import CANVAS, PROGRESS

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


STREAMED = {"keep": ["mass", "entropy", "flow"]}


def forked(act):
    """A process of its own, with all that this one has imported and loaded, which does it and ends."""
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def assert_begins(part, whole, of):
    """What is left are the first steps of what an undisturbed decoding gives, to the bit."""
    n = part.data.sizes["step"]
    assert part.info["ended"] == "unfinished" and part.info["model"] == whole.info["model"]
    assert part.info["unfinished"] == f"{n} of {of} steps" and f"({n} kept)" in repr(part)
    size = slice(whole.data.sizes["key"])  # where an answer ends is not known before it does
    there = part.data.isel(key=size, query=size, missing_dims="ignore")
    for name in ("column_sum", "rows_counted", "entropy", "flow", "canvas", "masked"):
        if n or name in ("canvas", "masked"):
            np.testing.assert_array_equal(there[name], whole.data[name][:n], name)
    return n


def test_kill_9_from_outside_leaves_the_steps_that_were_written(llada, tmp_path):
    """The writer is killed while it goes on, as soon as its store says that three steps are there."""
    sampler, path = fs.Confidence(length=24, steps=24), tmp_path / "t.zarr"
    whole = llada.trace("Hello", sampler, **STREAMED)

    def writing():
        def last(done, of):
            if done == of - 1:  # it never finishes, however slow the one is who kills it
                signal.pause()

        llada.trace("Hello", sampler, to=path, progress=last, **STREAMED)

    child = forked(writing)
    ended = []

    def alive():
        ended.extend(os.waitpid(child, os.WNOHANG)[:1] if not any(ended) else ())
        return not any(ended)

    def three():
        return len((unfinished.progress(path) or {}).get("steps", ())) >= 3

    until(three, "three steps", alive=alive)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    for lazy in (False, True):
        with pytest.warns(
            UserWarning, match=r"t.zarr was not finished: \d+ of 24 steps were written"
        ):
            part = fs.Trace.load(path, lazy=lazy)
        assert 3 <= assert_begins(part, whole, 24) < 24


def test_kill_9_at_any_file(models, tmp_path, monkeypatch):
    """Killed at an operation on its files: the last ones are those of `finish`, with all steps there. The
    answer ends early, so that arrays are cut to size in the end."""
    model, sampler = models["Llama"], fs.Autoregressive(length=6, temperature=1.0)
    third = model.generate("Hello", replace(sampler, stop_at_eos=False)).answer_ids[2]
    monkeypatch.setattr(model, "end_ids", (third,))
    whole = model.trace("Hello", sampler, **STREAMED)
    assert whole.data.sizes["step"] == 3

    def killed_at(number, path):
        done = 0

        def look(event, args):
            nonlocal done
            if event in ("open", "os.rename", "os.mkdir", "os.rmdir") and str(path) in str(args[0]):
                if done == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        sys.addaudithook(look)  # of the forked process
        model.trace("Hello", sampler, to=path, **STREAMED)
        (tmp_path / "operations").write_text(str(done))

    assert os.waitpid(forked(lambda: killed_at(-1, tmp_path / "all.zarr")), 0)[1] == 0
    operations = int((tmp_path / "operations").read_text())
    xr.testing.assert_identical(fs.Trace.load(tmp_path / "all.zarr").data, whole.data)
    assert not (tmp_path / "all.zarr" / CANVAS).exists()
    steps, early = [], range(operations // 12, operations - 12, operations // 4)
    for number in (*early, *range(operations - 12, operations, 3), operations - 1):
        path = tmp_path / f"{number}.zarr"
        assert os.waitpid(forked(lambda n=number, p=path: killed_at(n, p)), 0)[1] == signal.SIGKILL
        if unfinished.progress(path) is None:  # sealed: whole, but for what is left to sweep up
            xr.testing.assert_identical(fs.Trace.load(path).data, whole.data)
        else:
            with pytest.warns(UserWarning, match="was not finished"):
                steps.append(assert_begins(fs.Trace.load(path), whole, sampler.length))
    assert sorted(steps) == steps and steps[0] == 0 and steps[-1] == whole.data.sizes["step"]


class LastMoment(ThreadPoolExecutor):
    """The slowest disk there can be: nothing is written before someone waits for it."""

    def submit(self, act, *args):
        job = Future()
        job.result = lambda: act(*args)
        return job


def test_streaming_holds_a_constant_number_of_steps(llada, tmp_path, monkeypatch):
    """By the arrays that are alive, with a disk that is never done before it must be."""
    room = StoredSteps._room

    def noted(stored, values):
        array = room(stored, values)
        made.append((stored.steps[-1], weakref.ref(array)))
        alive.append(len({step for step, one in made if one() is not None}))
        return array

    monkeypatch.setattr(StoredSteps, "_room", noted)
    monkeypatch.setattr(kept, "ThreadPoolExecutor", LastMoment)
    most = {}
    for n in (8, 24):
        made, alive = [], []
        llada.trace("Hello", fs.Confidence(length=24, steps=n), to=tmp_path / f"{n}.zarr")
        assert len({step for step, _ in made}) == n and len(made) > 8 * n  # every array was seen
        most[n] = max(alive)
    assert most == {8: 4, 24: 4}  # one that is filled, one that arrives, two behind at the disk


def test_paths_that_do_not_fit_are_refused_before_anything_runs(llada, tmp_path):
    (tmp_path / "there").mkdir()
    sampler = fs.Confidence(length=4, steps=2)
    with pytest.raises(fs.TraceError, match="there exists"):
        llada.trace("Hello", sampler, to=tmp_path / "there")
    for prompts, to in ((PROMPTS, "one.zarr"), (PROMPTS, ["a", "a"]), ("Hello", ["a"])):
        with pytest.raises(fs.UsageError, match="to = "):
            llada.trace(prompts, sampler, to=to)
