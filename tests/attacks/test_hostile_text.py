"""Text that breaks what handles it: half characters, endless numbers, names that look like markup."""

import json

import numpy as np
import pytest
import zarr

import floatscope as fs
from floatscope.report.catalogue import Catalogue

HALF = '{"id": "a\\ud800", "question": "Who?", "answers": ["me"], "passages": ["It was me."]}'
LONG = '{"id": ' + "9" * 5000 + ', "question": "Who?", "answers": ["me"], "passages": ["Me."]}'
GOOD = '{"id": "b", "question": "Who?", "answers": ["me"], "passages": ["It was me."]}'


@pytest.mark.parametrize(("line", "says"), [(HALF, "unpaired surrogate"), (LONG, "cannot be read")])
def test_a_bad_record_is_named_by_its_line(tmp_path, line, says):
    path = tmp_path / "q.jsonl"
    second = GOOD.replace('"b"', '"c"')
    path.write_text(f"{GOOD}\n{line}\n{second}\n")
    with pytest.raises(fs.UsageError, match=rf"line 2: .*{says}"):
        fs.tasks.read_records(path)
    read = fs.tasks.read_records(path, skip_bad=True)
    assert len(read.records) == 2 and says in str(read.bad[0])


@pytest.mark.parametrize(("line", "says"), [(HALF, "unpaired surrogate"), (LONG, "cannot be read")])
def test_a_bad_document(tmp_path, line, says):
    path = tmp_path / "q.json"
    path.write_text(f"[{GOOD}, {line}]")
    with pytest.raises(fs.UsageError, match=says):
        fs.tasks.read_records(path)


@pytest.mark.parametrize("name", ["m{x}", "m[bold]", "m{0}{", "[/]", "m\\[x]"])
def test_a_progress_bar_shows_any_name(name, capsys, monkeypatch):
    from floatscope.cli.app import err
    from floatscope.cli.progress import Display

    monkeypatch.setattr(err, "_force_terminal", True)
    monkeypatch.setenv("TERM", "xterm")
    with Display(name, "questions", 2) as display:
        display.update(completed=2)
    shown = capsys.readouterr().err
    assert name in shown and "2 of 2 questions" in shown
    assert display.line().startswith(f"{name}: 2 of 2 questions, ")


def spoil(path, how):
    root = path / "zarr.json"
    metadata = json.loads(root.read_text())
    attributes = metadata["attributes"]
    if how == "no model":
        del attributes["model"]
    elif how == "files are a list":
        attributes["floatscope_files"] = []
    elif how == "sizes are text":
        attributes["floatscope_files"] = {
            name: ["a", "b"] for name in attributes["floatscope_files"]
        }
    elif how == "no schema":
        del attributes["floatscope_schema"]
    else:
        metadata = [1]
    root.write_text(json.dumps(metadata))


SPOILS = ["no model", "files are a list", "sizes are text", "no schema", "a list"]


@pytest.fixture(scope="module")
def traces(llada, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    trace = llada.trace("Hello", fs.Confidence(length=4, steps=2), keep=("mass",))
    for name in ["good", *SPOILS]:
        trace.save(folder / f"{name}.zarr")
    for name in SPOILS:
        spoil(folder / f"{name}.zarr", name)
    return folder


@pytest.mark.parametrize("how", SPOILS)
def test_a_spoiled_trace_is_an_error_that_names_it(traces, how):
    with pytest.raises(fs.TraceError, match=how):
        fs.Trace.load(traces / f"{how}.zarr")


def test_one_bad_trace_hides_no_good_one(traces):
    index = Catalogue.of(traces).index()
    assert len(index["examples"]) == 1
    assert len(index["left_out"]) == len(SPOILS)
    for how in SPOILS:
        assert any(how in line for line in index["left_out"])


def test_a_store_of_another_is_no_trace(tmp_path):
    zarr.save(tmp_path / "theirs.zarr", np.zeros(3))
    with pytest.raises(fs.TraceError, match="not a Floatscope trace"):
        fs.Trace.load(tmp_path / "theirs.zarr")
