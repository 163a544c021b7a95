"""BENCHMARKS.md and docs/clusters.md say what the raw results say."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("tables", BENCH / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("cost", "tables"):
        sys.modules.pop(name, None)


def test_every_table_is_up_to_date(tables):
    for page in (tables.PAGE, tables.CLUSTERS):
        assert tables.written(page.read_text(), page) == page.read_text()


def test_a_changed_result_changes_the_page(tables, monkeypatch):
    found = tables.gpu()
    found["LLaDA-8B"][2]["mass"] = 1.789
    monkeypatch.setattr(tables, "gpu", lambda: found)
    assert "1.789×" in tables.written(tables.PAGE.read_text())


def test_the_kernel_is_exact_in_every_case_measured(tables):
    found = json.loads((BENCH / "gpu.json").read_text())
    assert {row["dtype"] for row in found["exact"]} == {"bfloat16", "float16", "float32"}
    for row in found["exact"]:
        limit = 1e-5 if row["dtype"] == "float32" else 1e-3
        assert max(row[name] for name in ("column_sum", "entropy", "region_sum", "rolled")) <= limit
    assert all(row["same_logits"] for row in found["same"] if "same_logits" in row)
