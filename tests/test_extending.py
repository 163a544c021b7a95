"""A measure, sampler, intervention, study and family from outside: docs/how-to/extending.md, everywhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import floatscope as fs
from floatscope.cli import app
from floatscope.decode import SAMPLERS
from floatscope.engine import Run
from floatscope.interventions import INTERVENTIONS
from floatscope.measures import MEASURES
from floatscope.measures.base import Measure
from floatscope.models import FAMILIES
from floatscope.registry import Registry, dashed
from floatscope.studies import STUDIES

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "extending.md"

# On the pair's first layers: processes of their own load them too.
STUDY = (
    "study end-of-prompt --plugin my_plugin.py --model {pair/mdm} --model {pair/arm} --data world:one "
    "--limit 2 --questions 2 --length 4 --steps 2 --sampler left-to-right"
)


def run(text):
    """A command as typed, in this process."""
    done = CliRunner().invoke(app, text.split())
    print("$", text, done.exit_code, done.output, done.exception, sep="\n", flush=True)
    return done


def commands(study):
    """Those of the page."""
    failed = run("report run-1")
    assert "no run" in str(failed.exception)
    for name, how in {
        "1": "--workers 2",
        "ray": "--engine ray --workers 1",
    }.items():
        assert run(f"{study} --out run-{name} {how}").exit_code == 0
    assert "end-of-prompt" in run("measures --plugin my_plugin.py").output
    assert "only-near" in run("interventions --plugin my_plugin.py").output
    listed = run("models --plugin my_plugin.py").output
    assert "OLMo2" in listed and "left-to-right" in listed
    assert "end-of-prompt" in run("studies --plugin my_plugin.py").output
    traced = run(
        "trace --plugin my_plugin.py --model pair/mdm --prompt Who? --length 4 --sampler "
        "left-to-right --measure end-of-prompt --figures drawn"
    )
    assert traced.exit_code == 0 and "LeftToRight" in traced.output
    asked = run(
        "evaluate --plugin my_plugin.py --model pair/mdm --data world:one --limit 2 --length 4 "
        "--sampler left-to-right --intervene only-near,reach=8"
    )
    assert asked.exit_code == 0, asked.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cut_pair):
    """The page's file, and what its commands leave."""
    study = STUDY.format_map(cut_pair)
    folder = tmp_path_factory.mktemp("extending")
    code = PAGE.read_text().partition("\n## In Python")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", code, re.M | re.S)
    (folder / "my_plugin.py").write_text("\n".join(blocks))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for registry in (MEASURES, SAMPLERS, INTERVENTIONS, FAMILIES, STUDIES):
            patch.setattr(registry, "_added", dict(registry._added))
        commands(study)
    return folder


def test_a_study_from_outside_runs_like_any_other(folder):
    summary = json.loads((folder / "run-1" / "summary.json").read_text())
    [claim] = summary["claims"]
    assert claim["number"] == "101"
    assert claim["verdict"] in ("holds", "refuted", "undecided")
    assert [n["label"] for n in claim["numbers"]] == ["mdm", "untrained"]
    assert set(summary["right"]) == {"only-near"}
    assert (folder / "run-1" / "results" / "end-of-prompt-same.parquet").exists()
    page = (folder / "run-1" / "report.html").read_text()
    assert "The end of the prompt gets twice" in page
    assert "data:image/svg" in page  # its measure's figure, drawn by the base class
    assert "LeftToRight" in Run(folder / "run-1").read("ask-0-000-00000", ()).meta["sampler"]


def test_processes_and_ray_give_the_same_numbers(folder):
    one, ray = ((folder / f"run-{name}" / "summary.json").read_bytes() for name in ("1", "ray"))
    assert one == ray


def test_the_run_names_its_plugin_and_reading_never_imports_it(folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "floatscope_plugin_my_plugin", raising=False)
    asked = json.loads((folder / "run-1" / "run.json").read_text())
    assert asked["request"]["plugins"] == [str(folder / "my_plugin.py")]
    with pytest.raises(fs.RunError, match=r"unknown study 'end-of-prompt'.*--plugin .*my_plug"):
        fs_findings(folder / "run-1")
    assert "floatscope_plugin_my_plugin" not in sys.modules


def fs_findings(directory):
    from floatscope.studies import Findings

    return Findings(directory)


def test_a_figure_without_drawing_one(folder):
    assert "<svg" in (folder / "drawn" / "end-of-prompt.svg").read_text()


def test_an_installed_package_is_found_and_a_broken_one_named(tmp_path):
    (tmp_path / "installed_measure.py").write_text(
        "import floatscope as fs\n\n@fs.register\nclass FromAPackage(fs.Measure):\n"
        '    """Asks nothing."""\n'
    )
    for name, module in (("good", "installed_measure"), ("bad", "not_there")):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[floatscope]\n{name} = {module}\n")
    code = "from floatscope.measures import MEASURES; print(*MEASURES)"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split()[-1] == "from-a-package"
    assert "the plugin not_there cannot be imported" in done.stderr


def test_a_name_of_ours_is_not_replaced_before_it_is_known_either():
    """In a process that has imported the base class and no library."""
    code = "import floatscope as fs\n@fs.register\nclass Absorption(fs.Measure): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "'absorption' is already a measure of Floatscope" in done.stderr


def test_a_name_of_ours_is_not_replaced():
    class Absorption(Measure):
        """Not ours."""

    with pytest.raises(fs.UsageError, match=r"'absorption' is already a measure of Floatscope"):
        fs.register(Absorption)
    assert MEASURES["absorption"] is fs.measures.Absorption


def test_defined_again_the_new_one_counts():
    known = Registry("thing", "floatscope.measures.library")
    for number in (1, 2):
        known.add(type("MyThing", (), {"number": number}))
    assert list(known) == ["my-thing"] and known["my-thing"].number == 2


def test_what_cannot_be_registered_or_found():
    with pytest.raises(
        fs.UsageError, match=r"expected a measure, sampler, intervention, study or fam"
    ):
        fs.register(print)
    with pytest.raises(fs.UsageError, match=r"no measure 'nothing'\. There are: absorption, drift"):
        MEASURES.named("nothing")
    with pytest.raises(fs.UsageError, match=r"nowhere\.py cannot be imported: FileNotFoundError"):
        fs.load_plugin("nowhere.py")
    assert dashed("MaskColumns") == "mask-columns" and dashed("LLADA") == "llada"
