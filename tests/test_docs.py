"""Every Python block of the documentation runs, page by page, in an empty folder."""

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


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page, tmp_path):
    code = "\n".join(blocks(page))
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{code}\n{done.stderr[-2000:]}"


def test_the_demo_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "demo.py"],
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
