"""`overwrite` replaces what Floatscope wrote, whole, and nothing else."""

import json

import pytest
from toy_worker import plan

import floatscope as fs
from floatscope.cli.inputs import paths_for
from floatscope.engine import Run, execute

CHAPTER = "Ten years of work."


@pytest.fixture(autouse=True)
def counts(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TOY_COUNTS", str(tmp_path_factory.mktemp("counts")))


@pytest.fixture(scope="module")
def trace(llada):
    return llada.trace("Hello", fs.Confidence(length=4, steps=2), keep=("mass",))


def thesis(folder):
    folder.mkdir()
    (folder / "chapter.tex").write_text(CHAPTER)
    return folder


@pytest.mark.parametrize("kind", ["directory", "file", "link", "zarr of another"])
def test_a_trace_never_replaces_what_is_not_a_trace(trace, tmp_path, kind):
    mine = thesis(tmp_path / "thesis")
    path = {"file": mine / "chapter.tex", "link": tmp_path / "link"}.get(kind, mine)
    if kind == "link":
        path.symlink_to(mine)
    if kind == "zarr of another":
        (mine / "zarr.json").write_text(json.dumps({"attributes": {"theirs": 1}}))
    with pytest.raises(fs.TraceError, match="not a trace written by Floatscope"):
        trace.save(path, overwrite=True)
    with pytest.raises(fs.TraceError, match="not a trace written by Floatscope"):
        paths_for(path, 1, single=True, overwrite=True)  # the command line, before any work
    assert (mine / "chapter.tex").read_text() == CHAPTER


def test_a_trace_replaces_a_trace(trace, tmp_path):
    for _ in range(2):
        trace.save(tmp_path / "t.zarr", overwrite=True)
    assert fs.Trace.load(tmp_path / "t.zarr").text == trace.text
    assert [path.name for path in tmp_path.iterdir()] == ["t.zarr"]


def test_a_run_never_replaces_what_is_not_a_run(tmp_path):
    mine = thesis(tmp_path / "thesis")
    with pytest.raises(fs.RunError, match=r"contains chapter\.tex, which Floatscope did not write"):
        execute(plan(2), mine, overwrite=True)
    assert (mine / "chapter.tex").read_text() == CHAPTER
    assert [path.name for path in mine.iterdir()] == ["chapter.tex"]
    execute(plan(2), tmp_path / "run")
    thesis(tmp_path / "run" / "notes")
    with pytest.raises(fs.RunError, match="contains notes, which Floatscope did not write"):
        execute(plan(3), tmp_path / "run", overwrite=True)
    assert len(list(Run(tmp_path / "run").shards.ids())) == 2


def test_a_run_replaces_a_run_completely(tmp_path):
    out = tmp_path / "run"
    execute(plan(2), out)
    (out / "report.html").write_text("old")
    (out / "results").mkdir()
    (out / "results" / "old.parquet").write_text("old")
    execute(plan(3), out, overwrite=True)
    assert not (out / "report.html").exists() and not (out / "results").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_old_run_stays_until_the_new_one_is_complete(tmp_path):
    out = tmp_path / "run"
    execute(plan(2), out)
    with pytest.raises(fs.FloatscopeError):
        execute(plan(3, mishap="crash always", at=1), out, overwrite=True)
    [kept] = (tmp_path / ".run.replaced").iterdir()
    assert Run(kept).manifest() is not None
    execute(plan(3), out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_without_stored_shards_accepts_another_request(tmp_path):
    with pytest.raises(fs.FloatscopeError):
        execute(plan(2, mishap="crash always", at=0), tmp_path / "run")
    assert execute(plan(2, mishap=None), tmp_path / "run").computed == 2
    with pytest.raises(fs.RunError, match="contains another run"):
        execute(plan(2, size=70), tmp_path / "run")


def test_a_run_that_is_the_working_directory_is_not_moved(tmp_path, monkeypatch):
    execute(plan(2), tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(fs.RunError, match="contains the working directory"):
        execute(plan(3), ".", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(fs.RunError, match="is a link"):
        execute(plan(3), tmp_path / "link", overwrite=True)
    assert len(Run(tmp_path / "run").shards.ids()) == 2


@pytest.mark.parametrize("name", ["manifest.json", "run.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '"x"'])
def test_a_damaged_file_of_a_run_is_rewritten(tmp_path, name, content):
    execute(plan(3), tmp_path / "run")
    whole = json.loads((tmp_path / "run" / name).read_text())
    (tmp_path / "run" / name).write_text(content)
    again = execute(plan(3), tmp_path / "run")
    assert (again.reused, again.computed) == (3, 0)
    rebuilt = json.loads((tmp_path / "run" / name).read_text())
    assert rebuilt.get("result", rebuilt.get("request")) == whole.get(
        "result", whole.get("request")
    )
    assert any(
        e["event"] == "rebuilt" and e["what"] == name for e in Run(tmp_path / "run").events()
    )


def test_a_damaged_run_json_of_another_request_is_refused(tmp_path):
    execute(plan(3), tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(fs.RunError, match="none of its shards belongs to this request"):
        execute(plan(3, size=70), tmp_path / "run")
    assert len(Run(tmp_path / "run").shards.ids()) == 3
