"""Every Python block of the documentation runs, page by page, in an empty folder; so do the example
and the benchmark."""

import contextlib
import importlib.util
import io
import json
import re
import runpy
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import floatscope as fs
from floatscope.decode import SAMPLERS
from floatscope.instrument import Model
from floatscope.interventions import INTERVENTIONS
from floatscope.measures import MEASURES
from floatscope.models import FAMILIES
from floatscope.studies import STUDIES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def code_of(page):
    return page.read_text() if page.suffix == ".py" else "\n".join(blocks(page))


EXAMPLE = ROOT / "examples" / "one_question.py"
# Pages that show what the pair can do; on the others it does not matter how deep it is.
WHOLE = {
    "README.md",
    "index.md",
    "quickstart.md",
    "llada_and_llama.md",
    "pair.md",
    "interventions.md",
    "coming_from.md",
    EXAMPLE.name,
}
# test_gallery.py runs the gallery, and looks at what each line draws.
WITH_CODE = [page for page in PAGES if blocks(page) and page.name != "gallery.md"]


def test_the_first_pages_have_examples():
    assert {ROOT / "README.md", ROOT / "docs" / "tutorials" / "llada_and_llama.md"} <= set(
        WITH_CODE
    )


@pytest.fixture(scope="module")
def once():
    """Traces that several pages ask for are made once."""
    right, kept = Model.trace, {}

    def trace(model, prompts, sampler=None, **options):
        key = repr((model.name, model.n_layers, prompts, sampler, sorted(options.items())))
        if key not in kept:
            kept[key] = right(model, prompts, sampler, **options)
        return kept[key]

    return trace


@pytest.fixture
def started_here(monkeypatch):
    """A Python program that is started and waited for runs in this process, which need not import torch
    again. How it is started is another test's."""

    right = subprocess.run

    def run(command, **options):
        if command[0] != sys.executable:
            return right(command, **options)
        words, said = command[1:], io.StringIO()
        with contextlib.redirect_stdout(said), monkeypatch.context() as patch:
            module = words[0] == "-m"
            patch.setattr(sys, "argv", words[1:] if module else words)
            try:
                if module:
                    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(words[0], run_name="__main__")
            except SystemExit as ending:
                if ending.code:
                    raise subprocess.CalledProcessError(ending.code, command) from None
            finally:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        return SimpleNamespace(stdout=said.getvalue())

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    "page", [*WITH_CODE, EXAMPLE], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_examples_of_a_page_run(
    page, load, once, pair_kept, started_here, tmp_path, monkeypatch, capsys, request
):
    """Each page by itself: its own folder, its own names; what it registers is forgotten."""
    if page.name not in WHOLE:
        request.getfixturevalue("shallow_pair")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fs, "load", load)
    if page.parent.name == "measures":  # which change no model: the same call gives the same traces
        monkeypatch.setattr(Model, "trace", once)
    for registry in (MEASURES, SAMPLERS, INTERVENTIONS, FAMILIES, STUDIES):
        monkeypatch.setattr(registry, "_added", dict(registry._added))
    exec(compile(code_of(page), page.name, "exec"), {"__name__": "__main__"})
    if page == EXAMPLE:
        assert "Where attention rests" in capsys.readouterr().out


def script(name):
    """A script of ours as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lists_are_those_of_the_registries(monkeypatch):
    """Tables and counts between markers are what `python docs/generate.py` writes."""
    generate = script("docs/generate.py")
    monkeypatch.setattr(sys, "argv", [generate.__file__, "--check"])
    generate.main()


def test_the_published_tables_are_those_of_the_published_answers():
    table = script("examples/findings_table.py")
    found = table.tables(table.published(ROOT / "docs" / "findings.json.gz"))
    assert found.strip() in (ROOT / "docs" / "explanation" / "findings.md").read_text()


def test_the_benchmark_of_overhead_runs(started_here, tmp_path, monkeypatch):
    overhead = script("bench/overhead.py")
    out = tmp_path / "overhead.json"
    sizes = "--layers 2 --width 32 --heads 2 --sizes 32 --rounds 1 --json".split()
    monkeypatch.setattr(sys, "argv", [overhead.__file__, *sizes, str(out)])
    overhead.main()
    rows = json.loads(out.read_text())["rows"]
    assert {row["way"] for row in rows} == set(overhead.WAYS)
    assert all(row["ms"] > 0 and row["peak_bytes"] >= 0 for row in rows)


def test_the_command_line_starts_as_a_module():
    command = [sys.executable, "-m", "floatscope.cli", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == f"floatscope {version('floatscope')}\n"
