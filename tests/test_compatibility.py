"""What an earlier version wrote still opens, says the same but for corrected intervals, and is not
computed anew.

`data/old_run`, `data/old_trace.zarr` and `data/old_trace.json` (what that version read in it) were
written before the package was restructured; data/README.md says how.
"""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import floatscope as fs
from floatscope.studies import Findings
from floatscope.studies.results import write_results

DATA = Path(__file__).parent / "data"
OLD = DATA / "old_run"
FLAGS = """
    floating knowledge --model pair/mdm --model pair/arm --data world:one --limit 2 --questions 4
    --length 6 --steps 3 --view 1 --shard 2 --workers 1 --controls 0
""".split()


@pytest.fixture
def old_run(tmp_path):
    return shutil.copytree(OLD, tmp_path / "run")


def described(variable):
    values = np.ascontiguousarray(variable.values)
    said = {"dims": list(variable.dims), "shape": list(values.shape)}
    if values.dtype.kind not in "biuf":
        return said | {"values": values.astype(str).ravel().tolist()}
    return said | {
        "dtype": str(values.dtype),
        "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
    }


@pytest.mark.parametrize("lazy", [False, True])
def test_an_old_trace_opens_with_the_same_arrays(lazy):
    then = json.loads((DATA / "old_trace.json").read_text())
    trace = fs.Trace.load(DATA / "old_trace.zarr", lazy=lazy)
    found = {str(name): described(array) for name, array in trace.data.variables.items()}
    now = found.pop("token")
    found["token"] = found.pop("final_token")  # its name then
    assert found == then["variables"]
    assert now["dims"] == ["step", "key"] and now["shape"] == [3, 57]
    assert trace.data.attrs == then["attrs"] and trace.text == then["text"]
    assert float(trace.lift.isel(key=0).mean()) == pytest.approx(then["lift_at_0"], rel=1e-6)
    np.testing.assert_allclose(trace.mass.sum("key"), 1, atol=1e-5)


def test_tokens_at_each_step_of_an_old_trace_come_from_its_canvases():
    trace = fs.Trace.load(DATA / "old_trace.zarr")
    token, final = (trace.data[name].values for name in ("token", "final_token"))
    masked = trace.data["masked"].values
    assert masked.any() and (token[masked] == "⟨mask⟩").all()
    assert (token[~masked] == np.tile(final, (3, 1))[~masked]).all()
    start = trace.info["prompt_length"]
    assert trace.raw_text == "".join(final[start:]) and trace.raw_text.startswith(trace.text)


def test_measures_take_an_old_trace():
    trace = fs.Trace.load(DATA / "old_trace.zarr")
    for measure in (fs.Absorption(), fs.Dispersion(), fs.RetrievalHeads()):
        assert len(measure(trace).table())


def unchanged(table):
    """Without what was wrong then: intervals, and the dispersion of few examples."""
    if "value" not in table:
        return table
    kept = table[table["value"] != "dispersion"]
    return kept.drop(columns=["low", "high"]).reset_index(drop=True)


def without_intervals(summary):
    """What a summary says of the run, and the share of right answers in every setting."""
    right = {
        setting: {model: (number["value"], number["n"]) for model, number in of.items()}
        for setting, of in summary["right"].items()
    }
    return {key: summary[key] for key in ("request", "models", "left_out")} | {"right": right}


def test_an_old_run_gives_the_same_tables_and_the_same_summary(old_run):
    shutil.rmtree(old_run / "results")
    (old_run / "summary.json").unlink()
    write_results(Findings(old_run))
    now, then = (json.loads((run / "summary.json").read_text()) for run in (old_run, OLD))
    assert without_intervals(now) == without_intervals(then)
    names = {path.name for path in (OLD / "results").iterdir()}
    assert {path.name for path in (old_run / "results").iterdir()} == names
    for name in names:
        now, then = (pd.read_parquet(folder / "results" / name) for folder in (old_run, OLD))
        if "weights" in now:  # which those tables did not say: there were no controls
            assert set(now.pop("weights")) == {"trained"}
        if "gold" in now:  # nor these, which its shards hold
            assert now.pop("gold").all() and set(now.pop("counted").astype(bool)) <= {True, False}
        pd.testing.assert_frame_equal(unchanged(now), unchanged(then), check_exact=True)
        assert list(now.columns) == list(then.columns) and len(now) == len(then)


def test_an_old_run_keeps_its_settings_where_a_study_now_asks_in_others(old_run, monkeypatch):
    """Shards are numbered: read by number, one setting's answers would pass for another's."""
    from floatscope.studies.library.knowledge import Knowledge
    from floatscope.studies.setting import Setting

    then = Findings(old_run)
    asked = {s: then.answers(s, "pair/mdm") for s in ("closed-book", "with-passages")}
    before = Knowledge.settings
    monkeypatch.setattr(
        Knowledge,
        "settings",
        lambda self, request: [Setting("a new one"), *reversed(before(self, request))],
    )
    now = Findings(old_run)
    for setting, answers in asked.items():
        assert now.answers(setting, "pair/mdm")["prediction"].tolist() == (
            answers["prediction"].tolist()
        )
    assert now.answers("a new one", "pair/mdm") is None
    assert now.models == then.models and now.shown() == then.shown()


def test_an_old_run_has_no_control(old_run):
    found = Findings(old_run)
    assert found.request.controls == 0 and "controls" not in found.request.as_json()
    assert list(found.models) == ["pair/mdm", "pair/arm"]
    assert all(found.control(key, "pair/mdm") is None for key in found.measures)
    pairs = found.paired("absorption", "first", "pair/mdm", "pair/arm")
    assert [len(one) for one in pairs] == [2, 2]  # old shards name their prompts too


def test_an_old_run_is_reported_and_viewed(old_run, command_line):
    command_line("report", old_run)
    assert "The viewer shows 1 of 2 traced examples" in (old_run / "report.html").read_text()


def test_an_old_run_is_resumed_without_computing_a_shard_anew(old_run, command_line, monkeypatch):
    def refuse(request):
        raise AssertionError("a shard is computed anew")

    monkeypatch.setattr("floatscope.studies.worker.make", refuse)
    kept = ("manifest.json", "run.json")  # a summary is worked out anew
    done = command_line("study", *FLAGS, "--resume", "--out", old_run)
    assert "0 shards computed, 10 were there" in done.stdout
    for name in kept:
        assert (old_run / name).read_bytes() == (OLD / name).read_bytes()
