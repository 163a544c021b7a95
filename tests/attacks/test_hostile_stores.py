"""Saved traces that were damaged, killed while written, or written by two at once."""

import fcntl
import json
import os
import shutil
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import floatscope as fs
from floatscope.livepage.export import zipped
from floatscope.report.catalogue import Catalogue
from floatscope.trace import store, unfinished
from floatscope.trace.checked import CheckedStore

STORED = Path(__file__).parents[1] / "data" / "trace.zarr"


@pytest.fixture(scope="module")
def trace():
    return fs.Trace.load(STORED)


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
    parts = [p for p in (STORED / array / "c").rglob("*") if p.is_file()]
    (saved / parts[0].relative_to(STORED)).write_bytes(whole)
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
    with pytest.raises(fs.TraceError, match="was added after"):
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
        with pytest.raises(fs.TraceError, match=f"has no {name}"):
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
            shutil.copytree(STORED, path)
            root = json.loads((path / "zarr.json").read_text())
            del root["attributes"]["floatscope_seal"]
            (path / "zarr.json").write_text(json.dumps(root))

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


# Stores that declare more than they hold


def redescribe(path, change):
    """Apply `change(metadata)` to every array's description, and seal the store again."""
    for file in path.glob("*/zarr.json"):
        said = json.loads(file.read_text())
        change(said)
        file.write_text(json.dumps(said))
    store.seal(path, 2)
    return path


def lengthen(steps, chunk):
    def change(said):
        for i, dim in enumerate(said.get("dimension_names") or ()):
            if dim in ("step", "tick", "state"):
                said["shape"][i] = steps + (dim == "state")
                said["chunk_grid"]["configuration"]["chunk_shape"][i] = chunk

    return change


@pytest.mark.parametrize(
    ("chunk", "words"), [(3, "parts in 50 files"), (3_000_000, "MB in files of")]
)
def test_a_store_that_declares_more_steps_than_its_files_hold_is_refused(saved, chunk, words):
    redescribe(saved, lengthen(3_000_000, chunk))
    with pytest.raises(fs.TraceError, match=rf"t\.zarr is damaged: .*declares arrays of .*{words}"):
        fs.Trace.load(saved, lazy=True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("codecs", [{"name": "gzip"}], "names the codec 'gzip'"),
        ("codecs", ["numcodecs.pickle"], "names the codec"),
        ("shape", [-1], "has shape"),
        ("shape", None, "has shape = None, expected a list"),
        ("data_type", "object", "has data_type 'object'"),
        ("chunk_grid", [], "has chunk_grid"),
    ],
)
def test_an_array_described_as_no_trace_describes_it_is_refused(saved, name, value, words):
    redescribe(saved, lambda said: said.update({name: value}))
    with pytest.raises(fs.TraceError, match=words):
        fs.Trace.load(saved, lazy=True)


@pytest.mark.parametrize("known", [True, False])
def test_a_part_that_unpacks_to_more_than_the_store_declares_is_refused(saved, known):
    from numcodecs.zstd import Zstd

    frame = bytearray(Zstd().encode(bytes(70_000)))
    assert frame[4] >> 6 == 2  # its size in four bytes
    if known:
        frame[5:9] = (2**32 - 1).to_bytes(4, "little")
    else:
        frame[4] = 0  # a frame without its size, and with a window
    chunk_of(saved, "column_sum").write_bytes(frame)
    store.seal(saved, 2)
    lazy = fs.Trace.load(saved, lazy=True)
    words = "unpacks to 4,295 MB" if known else "does not state its unpacked size"
    with pytest.raises(fs.TraceError, match=words):
        lazy.data["column_sum"].values  # noqa: B018


@pytest.mark.parametrize("kind", ["fifo", "zeros"])
@pytest.mark.parametrize("name", ["zarr.json", "canvas/zarr.json", "canvas/c/0/0"])
def test_what_is_no_regular_file_is_refused(saved, name, kind):
    lazy = fs.Trace.load(saved, lazy=True)
    (saved / name).unlink()
    os.mkfifo(saved / name) if kind == "fifo" else (saved / name).symlink_to("/dev/zero")
    with pytest.raises(
        fs.TraceError, match="is not a Floatscope trace|is missing|not a regular file"
    ):
        fs.Trace.load(saved)
    if "zarr.json" not in name:
        with pytest.raises(fs.TraceError, match="is not a regular file"):
            lazy.data["canvas"].values  # noqa: B018


def test_a_fifo_among_the_steps_of_an_unfinished_trace_is_refused(trace, tmp_path):
    path = tmp_path / "u.zarr"
    about = {
        "attributes": {"mask_id": 0, "prompt_length": 1},
        **{name: [0] for name in ("layer", "head")},
        **{name: ["a"] for name in ("group", "source", "target")},
        "region": ["prompt", "answer"],
    }
    writer = unfinished.Unfinished(path, room=4, about=about)
    writer.write(0, {unfinished.CANVAS: (("key",), np.array([1, 0]))})
    assert len(unfinished.load(path, unfinished.progress(path)).step) == 1
    part = chunk_of(path, unfinished.CANVAS)
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(fs.TraceError, match="is not a regular file"):
        unfinished.load(path, unfinished.progress(path))
    progress = {**unfinished.progress(path), "steps": list(range(10**6))}
    with pytest.raises(fs.TraceError, match="damaged"):
        unfinished.load(path, progress)


def test_a_trace_that_takes_long_does_not_keep_others_waiting(trace):
    """Its reader waits for an event that is set after the other trace was served."""
    served, begun = threading.Event(), threading.Event()

    def load(name):
        if name == "slow":
            begun.set()
            served.wait()
        return trace

    catalogue = Catalogue("t", ["slow", "quick"], load)
    index = threading.Thread(target=catalogue.index)
    index.start()
    begun.wait()
    assert catalogue.scene("quick")["title"]
    served.set()
    index.join()
    assert not catalogue.index()["left_out"]


def test_a_zipped_trace_is_read_as_it_was_saved(trace, saved, tmp_path):
    (tmp_path / "t.zip").write_bytes(zipped(saved))
    assert fs.Trace.load(tmp_path / "t.zip").data.identical(trace.data)


@pytest.mark.parametrize(
    ("members", "compression"),
    [
        ({"t.zarr/zarr.json": b"0" * 100_000}, zipfile.ZIP_DEFLATED),  # a bomb
        ({"a/zarr.json": b"{}", "b/zarr.json": b"{}"}, zipfile.ZIP_STORED),
        ({"../t.zarr/zarr.json": b"{}"}, zipfile.ZIP_STORED),
        ({"t.zarr/zarr.json": b"{}"}, zipfile.ZIP_STORED),
        ({"/zarr.json": b"{}"}, zipfile.ZIP_STORED),
        ({"trace": b"{}"}, zipfile.ZIP_STORED),
        ({}, zipfile.ZIP_STORED),
    ],
)
def test_a_hostile_zip_file_is_refused_and_leaves_nothing(
    members, compression, tmp_path, monkeypatch
):
    path, scratch = tmp_path / "in" / "t.zip", tmp_path / "scratch"
    path.parent.mkdir()
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(fs.TraceError):
        fs.Trace.load(path)
    assert names(tmp_path) == ["in", "scratch"] and names(path.parent) == ["t.zip"]
    assert names(scratch) == []


def test_a_zip_file_whose_members_share_bytes_is_refused(saved, tmp_path):
    data = bytearray(zipped(saved))
    start = data.index(b"PK\x01\x02")  # the first entry of the directory
    data[start + 24 : start + 28] = (1 << 30).to_bytes(4, "little")  # its size after unpacking
    (tmp_path / "t.zip").write_bytes(data)
    with pytest.raises(fs.TraceError, match="exactly one saved trace"):
        fs.Trace.load(tmp_path / "t.zip")


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", ""])
def test_names_that_lead_out_of_a_store_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="not the name of an array"):
        CheckedStore(tmp_path).require_held([name], [])
