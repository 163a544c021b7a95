"""Saved traces that were damaged, killed while written, or written by two at once."""

import fcntl
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import floatscope as fs
from floatscope.trace import store

OLD = Path(__file__).parents[1] / "data" / "old_trace.zarr"


@pytest.fixture(scope="module")
def trace():
    return fs.Trace.load(OLD)


@pytest.fixture
def saved(trace, tmp_path):
    return trace.save(tmp_path / "t.zarr")


def chunk_of(path, array):
    return next(p for p in (path / array / "c").rglob("*") if p.is_file())


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("array", ["column_sum", "canvas", "null"])
def test_damage_after_opening_is_noticed_when_read(saved, trace, array):
    lazy = fs.Trace.load(saved, lazy=True)
    whole = chunk_of(saved, array).read_bytes()
    flip(chunk_of(saved, array))
    with pytest.raises(fs.TraceError, match=rf"t\.zarr is damaged: {array}/c.*has changed"):
        lazy.data[array].values  # noqa: B018
    chunk_of(saved, array).unlink()  # zarr itself would read zeros here
    with pytest.raises(fs.TraceError, match=rf"{array}/c.*missing"):
        lazy.data[array].isel({lazy.data[array].dims[0]: 0}).values  # noqa: B018
    (saved / array / "c").mkdir(exist_ok=True)
    parts = [p for p in (OLD / array / "c").rglob("*") if p.is_file()]
    (saved / parts[0].relative_to(OLD)).write_bytes(whole)
    np.testing.assert_array_equal(lazy.data[array].values, trace.data[array].values)


def test_damage_to_an_arrays_description(saved):
    flip(saved / "canvas" / "zarr.json")
    for lazy in (False, True):
        with pytest.raises(fs.TraceError, match=r"canvas/zarr\.json has changed"):
            fs.Trace.load(saved, lazy=lazy)


def test_a_part_that_was_put_there_is_not_read(saved, trace):
    lazy = fs.Trace.load(saved, lazy=True)
    root = json.loads((saved / "zarr.json").read_text())["attributes"]
    part = chunk_of(saved, "column_sum")
    name = str(part.relative_to(saved))
    del root["floatscope_files"][name]
    with pytest.raises(fs.TraceError, match="was put there"):
        store.CheckedStore(saved, {})._read(name)
    assert np.isfinite(lazy.data["column_sum"].values).any()


def test_a_file_that_someone_added_is_not_of_the_trace(saved, trace):
    (saved / ".DS_Store").write_text("theirs")
    (saved / "notes").mkdir()
    (saved / "canvas" / "notes.txt").write_text("theirs")
    for lazy in (False, True):
        again = fs.Trace.load(saved, lazy=lazy)  # without a warning, which would be an error here
        assert set(again.data.variables) == set(trace.data.variables)


@pytest.mark.parametrize("name", ["text", "prompt_length", "model"])
@pytest.mark.parametrize("value", [None, [], {"a": 1}, 1.5])
def test_attributes_of_another_type(saved, name, value):
    root = json.loads((saved / "zarr.json").read_text())
    root["attributes"][name] = value
    for sealed in (True, False):  # a store of before there were seals has its types alone
        if not sealed:
            del root["attributes"]["floatscope_seal"]
        (saved / "zarr.json").write_text(json.dumps(root))
        with pytest.raises(fs.TraceError, match=f"does not say its {name}"):
            fs.Trace.load(saved)


def test_a_changed_attribute_is_noticed(saved):
    text = (saved / "zarr.json").read_text()
    assert "pair/mdm" in text
    (saved / "zarr.json").write_text(text.replace("pair/mdm", "pair/arm"))
    with pytest.raises(fs.TraceError, match=r"zarr\.json has changed"):
        fs.Trace.load(saved)
    (saved / "zarr.json").write_text("[" * 100_000)
    with pytest.raises(fs.TraceError, match="not a Floatscope trace"):
        fs.Trace.load(saved)


def test_leftovers_are_swept_and_nothing_else(trace, tmp_path):
    left = [".t.zarr.12-00ff00ff.partial", ".t.zarr.12-00ff00ff.old", ".t.zarr.99.partial"]
    kept = {
        ".t.zarr.7-00ff00ff.partial": "chapter.tex",  # someone's own, however it is called
        ".other.zarr.12-00ff00ff.partial": None,
        ".t.zarr.backup.partial": None,
        ".t.zarr.12-00ff00fe.partial": None,  # another writer's, see below
    }
    for name in [*left, *kept]:
        (tmp_path / name / "mass").mkdir(parents=True)
        (tmp_path / name / (kept.get(name) or "zarr.json")).write_text("{}")
    (tmp_path / ".t.zarr.8.old").symlink_to(tmp_path / ".other.zarr.12-00ff00ff.partial")
    handle = os.open(tmp_path / ".t.zarr.12-00ff00fe.partial", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    trace.save(tmp_path / "t.zarr")
    assert names(tmp_path) == sorted([*kept, ".t.zarr.8.old", "t.zarr"])
    os.close(handle)
    trace.save(tmp_path / "t.zarr", overwrite=True)
    assert ".t.zarr.12-00ff00fe.partial" not in names(tmp_path)


def test_what_a_killed_save_moved_aside_is_named(saved):
    saved.rename(saved.with_name(".t.zarr.12-00ff00ff.old"))
    with pytest.raises(fs.TraceError, match=r"left \.t\.zarr\.12-00ff00ff\.old.*Rename"):
        fs.Trace.load(saved)


def test_a_faster_writer_is_not_replaced_unasked(trace, tmp_path, monkeypatch):
    seal, path = store.seal, tmp_path / "t.zarr"

    def overtaken(partial, schema):
        seal(partial, schema)
        if not path.exists():
            shutil.copytree(OLD, path)

    monkeypatch.setattr(store, "seal", overtaken)
    with pytest.raises(fs.TraceError, match="exists"):
        trace.save(path)
    assert "floatscope_seal" not in (path / "zarr.json").read_text()  # theirs
    assert names(tmp_path) == ["t.zarr"]
    trace.save(path, overwrite=True)
    assert "floatscope_seal" in (path / "zarr.json").read_text()
    assert names(tmp_path) == ["t.zarr"]


def test_two_writers_at_once_leave_one_whole_trace(trace, tmp_path):
    path, errors = tmp_path / "t.zarr", []
    together = threading.Barrier(3)

    def write():
        try:
            for _ in range(2):
                together.wait()
                trace.save(path, overwrite=True)
        except Exception as error:
            errors.append(error)
            together.abort()

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors
    assert fs.Trace.load(path).text == trace.text
    assert names(tmp_path) == ["t.zarr"]
