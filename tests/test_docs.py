"""Every Python block of the documentation runs, page by page, in an empty folder."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def test_there_are_examples():
    assert sum(len(blocks(page)) for page in PAGES) >= 8


WITH_CODE = [page for page in PAGES if blocks(page)]
AT_ONCE = 6  # pages a process: importing torch takes longer than most of them
GROUPS = [WITH_CODE[i : i + AT_ONCE] for i in range(0, len(WITH_CODE), AT_ONCE)]
RUNNER = """
import os, sys, json
for name, folder, code in json.load(sys.stdin):
    os.makedirs(folder)
    os.chdir(folder)
    print("page", name, file=sys.stderr, flush=True)
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("pages", GROUPS, ids=lambda pages: f"{pages[0].name}…{pages[-1].name}")
def test_the_examples_of_every_page_run(pages, tmp_path):
    """Each page by itself: its own folder, its own names."""
    work = [
        (str(page.relative_to(ROOT)), str(tmp_path / str(i)), "\n".join(blocks(page)))
        for i, page in enumerate(pages)
    ]
    command = [sys.executable, "-W", "error", "-c", RUNNER]
    done = subprocess.run(
        command, input=json.dumps(work), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_example_of_one_question_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "one_question.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Where attention rests" in done.stdout


def test_the_benchmark_runs(tmp_path):
    out = tmp_path / "overhead.json"
    command = [sys.executable, ROOT / "bench" / "overhead.py", "--layers", "2", "--width", "32"]
    command += ["--heads", "2", "--sizes", "32", "--rounds", "1", "--json", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert out.exists()
