"""A study's worker traces the next batch while the last one is measured, and stores the same."""

import gc
import threading
import weakref
from concurrent.futures import Future
from functools import partial

import numpy as np
import pytest

import floatscope as fs
from floatscope.engine.shards import encode
from floatscope.models import tiny
from floatscope.studies import measuring, request_of
from floatscope.studies.kept_models import KeptModels
from floatscope.studies.measuring import Measuring, threads_of
from floatscope.studies.worker import ShardWorker

LONG = 300  # seconds: only a test that fails waits for it


class Later(Future):
    """A job that is done when its result is asked for."""

    def __init__(self, job):
        super().__init__()
        self.job = job

    def result(self):
        return self.job()


class Unhurried:
    """An executor without threads: every job is done as late as it can be."""

    def __init__(self, threads, **_):
        pass

    def submit(self, job):
        return Later(job)

    def shutdown(self, **_):
        pass


def test_add_waits_for_the_batch_before_and_for_no_other(monkeypatch):
    monkeypatch.setattr(measuring, "ThreadPoolExecutor", Unhurried)
    done, several = [], Measuring()
    several.add([partial(done.append, 1), partial(done.append, 2)])
    assert done == []
    several.add([partial(done.append, 3)])
    assert done == [1, 2]
    several.add([])
    assert done == [1, 2, 3] and several.finish() == [None] * 3


def test_a_batch_is_measured_while_the_next_is_traced():
    begun = threading.Event()

    def batches():
        yield [partial(begun.wait, LONG)]  # measured only if the next is asked for meanwhile
        begun.set()
        yield [lambda: "next"]

    with Measuring() as several:
        for batch in batches():
            several.add(batch)
        assert several.finish() == [True, "next"]


def test_results_have_the_order_of_their_jobs_whichever_ends_first():
    second = threading.Event()

    def first_ends_last():
        return second.wait(LONG)

    def ends_first():
        second.set()
        return "second"

    with Measuring(2) as several:
        several.add([first_ends_last, ends_first])
        assert several.finish() == [True, "second"]


@pytest.mark.parametrize("last", [True, False])
def test_an_error_of_a_job_is_raised_where_the_next_batch_is_added(last):
    with pytest.raises(ZeroDivisionError), Measuring() as several:
        several.add([lambda: 1 / 0])
        several.finish() if last else several.add([])


def test_a_worker_has_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(measuring.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_of(n) for n in (1, 4, 5, 16, 40)] == [4, 4, 3, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [threads_of(n) for n in (1, 16)] == [2, 1]


# Shards


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tiny.write("LLaDA", tmp_path_factory.mktemp("model"), tiny.Shape(context=1024)))


def worker(path, *, threads=1, directory=None, **more):
    fields = {"studies": ["floating", "retrieval"], "models": [path], "data": "world:one"}
    fields |= {"limit": 5, "length": 6, "steps": 3, "questions": 2, "view": 1, "batch": 2}
    return ShardWorker(
        request_of(fields | more), KeptModels(), threads=threads, directory=directory
    )


def spec(path, **more):
    return {"kind": "trace", "model": path, "domain": "questions", "start": 0, "stop": 5, **more}


def stored(made, path, **more):
    return encode("s", "key", made(spec(path, **more), lambda done, of: None))


def test_a_shard_has_the_same_bytes_with_any_threads_and_without_overlap(path, monkeypatch):
    several = stored(worker(path, threads=3), path, controls=[0, 1])
    assert stored(worker(path), path, controls=[0, 1]) == several
    monkeypatch.setattr(measuring, "ThreadPoolExecutor", Unhurried)
    assert stored(worker(path), path, controls=[0, 1]) == several


def test_an_error_of_a_measure_ends_the_shard(path, monkeypatch):
    monkeypatch.setattr(fs.Measure, "example", lambda self, trace: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stored(worker(path), path)


def test_two_batches_are_in_memory_at_most(path, monkeypatch):
    made, held, trace = [], [], fs.Model.trace

    def alive():
        gc.collect()
        return sum(one() is not None for one in made)

    def watched(model, prompts, *args, **options):
        held.append(alive())
        found = trace(model, prompts, *args, **options)
        made.extend(weakref.ref(one.data["column_mean"].values) for one in found)
        return found

    monkeypatch.setattr(fs.Model, "trace", watched)
    stored(worker(path), path)
    assert len(held) == 3 and max(held) <= 2  # the batch before; the one before that is gone
    assert len(made) == 5 and not alive()


def test_examples_that_nobody_views_keep_less(path, monkeypatch):
    kept, trace = [], fs.Model.trace

    def watched(model, prompts, *args, **options):
        kept.append(options)
        return trace(model, prompts, *args, **options)

    monkeypatch.setattr(fs.Model, "trace", watched)
    made = worker(path, batch=5)
    made(spec(path), lambda done, of: None)
    made(spec(path, start=2), lambda done, of: None)
    viewed, other, later = (set(options["keep"] or ()) for options in kept)
    assert later == other
    assert viewed == other | {"mass", "groups", "rows"} or not other
    only_reads = worker(path, studies=["movement"], view=0)
    only_reads.by_domain["questions"] = {
        key: one for key, one in only_reads.by_domain["questions"].items() if key.endswith("-same")
    }
    only_reads(spec(path, stop=2), lambda done, of: None)
    assert kept[3] == {"batch_size": 2, "keep": ("mass",), "layers": [0], "heads": [0]}


# What is kept of a viewed example


def test_scenes_are_those_of_the_trace_and_traces_are_kept_where_asked(path, tmp_path):
    from floatscope.scenes.codec import put_arrays
    from floatscope.scenes.pack import scene_of

    made = worker(path, keep_traces=True, directory=tmp_path, view=2)
    output = made(spec(path), lambda done, of: None)
    examples = output.meta["examples"]
    assert ["scenes" in one for one in examples] == [True, True, False, False, False]
    assert sorted(file.name for file in (tmp_path / "traces").iterdir()) == [
        one["trace"] for one in examples[:2]
    ]
    for one in examples[:2]:
        trace = fs.Trace.load(tmp_path / "traces" / one["trace"])
        assert {"column_sum", "entropy", "row_key"} <= set(trace.data)
        scene = put_arrays(one["scenes"]["page"], output.data[f"{one['index']}/page"])
        assert scene == scene_of(trace, example=one["id"])


def test_a_scene_that_leaves_something_out_is_stored_a_second_time_to_be_served(path, monkeypatch):
    from floatscope.studies import worker as module

    monkeypatch.setitem(module._SCENES, "page", 25_000)
    output = worker(path)(spec(path, stop=1), lambda done, of: None)
    page, served = (output.meta["examples"][0]["scenes"][name] for name in ("page", "served"))
    assert page["left_out"] and not served["left_out"]
    codes = [output.data[f"0/{name}"]["share"].values for name in ("page", "served")]
    assert all(one.dtype == np.uint16 for one in codes) and len(codes[0]) <= len(codes[1])


def test_a_trace_that_no_scene_can_show_is_named(path, monkeypatch):
    from floatscope.studies import worker as module

    monkeypatch.setitem(module._SCENES, "page", 5_000)
    output = worker(path)(spec(path, stop=2), lambda done, of: None)
    (note,) = output.meta["left_out"]
    assert note["what"] == "the view of example 0" and "does not fit" in note["why"]
    assert all("scenes" not in one for one in output.meta["examples"])
