"""What reads traces and writes reports needs nothing that macOS or Windows lack."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from floatscope import atomic
from floatscope.engine import lock
from floatscope.errors import RunError
from floatscope.models import tiny
from floatscope.studies import request_of
from floatscope.studies.run import run
from floatscope.trace import Trace

STORED = Path(__file__).parent / "data" / "trace.zarr"
# Linux alone has all of these. What other packages import must be there before names are taken away.
WITHOUT = """
    import filelock, matplotlib.backends.backend_svg, multiprocessing.context, pandas, scipy.stats, torch
    import multiprocessing.resource_tracker, pyarrow.parquet, typer, uvicorn, xarray, zarr
    import importlib.abc, os, signal, sys
    from transformers import AttentionInterface, AutoTokenizer, LlamaForCausalLM, PreTrainedModel

    MISSING = ("fcntl", "resource", "pwd", "grp", "termios")

    class Missing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name in MISSING:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Missing())
    for name in MISSING:
        sys.modules.pop(name, None)
    for name in ("sched_getaffinity", "sync", "getuid", "sysconf", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
        delattr(os, name)
    for name in ("SIGHUP", "pthread_sigmask"):
        delattr(signal, name)
    del multiprocessing.context.ForkServerContext
"""
READS = """
    import floatscope as fs
    import floatscope.cli, floatscope.report.build, floatscope.trace
    import floatscope.engine.local, floatscope.livepage.scratch
    from floatscope.engine.hardware import usable_cores
    from floatscope.report.embed import viewer_page
    from floatscope.scenes.pack import scene_of
    from floatscope.report.loopback import _default_handlers

    for name in dir(fs):
        getattr(fs, name)
    trace = fs.Trace.load(sys.argv[1])
    assert trace.n_steps
    path = trace.save(sys.argv[2])
    assert repr(fs.Trace.load(path)) == repr(trace)
    assert "script" in viewer_page([scene_of(trace)], "a trace")
    assert usable_cores() and _default_handlers()
"""
REPORTS = """
    from floatscope.report.build import save_figures, write_report
    from floatscope.studies import Findings
    from floatscope.studies.results import write_results

    findings = Findings(sys.argv[3])
    write_results(findings)
    assert save_figures(findings, findings.run.make_folder("figures"), ["svg"])
    print(write_report(findings).read_text(encoding="utf-8"))
"""


def run_without(*parts, arguments):
    """Run code in a Python without what Linux alone has."""
    code = "".join(map(textwrap.dedent, (WITHOUT, *parts)))
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names_traces_and_reports_need_nothing_of_linux(tmp_path):
    model = tiny.write("LLaDA", tmp_path / "model", tiny.Shape(context=1024))
    asked = {"studies": ["structure"], "models": [str(model)], "data": "world:one", "limit": 2}
    run(request_of({**asked, "length": 4, "view": 1}), tmp_path / "run")
    copies = tmp_path / "copies"
    copies.mkdir()
    page = run_without(READS, REPORTS, arguments=(STORED, copies / "copy.zarr", tmp_path / "run"))
    assert [path.name for path in copies.iterdir()] == ["copy.zarr"]
    assert "structure" in page and page.rstrip().endswith("</html>")


def test_partial_directory_without_directory_locks(tmp_path, monkeypatch):
    """As on Windows: it is written and placed; what another writer left stays."""
    monkeypatch.setattr(atomic, "_CAN_OPEN_DIRECTORIES", False)
    monkeypatch.setattr(atomic, "_opened", lambda folder: None)
    left = tmp_path / ".t.zarr.12-00ff00ff.partial"
    (left / "mass").mkdir(parents=True)
    Trace.load(STORED).save(tmp_path / "t.zarr")
    assert {path.name for path in tmp_path.iterdir()} == {"t.zarr", left.name}


def test_holder_text_begins_after_the_locked_byte(tmp_path):
    """Windows refuses to read the byte that is locked; the text begins after it."""
    path = tmp_path / "run.lock"
    with lock.hold(path):
        assert path.read_bytes()[:1] == lock._LOCKED
        expected = f"is in use by process {os.getpid()} on "
        with pytest.raises(RunError, match=expected), lock.hold(path):
            pass
    with lock.hold(path):
        pass
