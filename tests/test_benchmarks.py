"""BENCHMARKS.md and docs/how-to/clusters.md say what the raw results say."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
OURS = ("cost", "tables", "table_parts")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("tables", BENCH / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        sys.modules.pop(name)


def test_every_table_is_up_to_date(tables):
    for page in (tables.PAGE, tables.CLUSTERS):
        assert tables.written(page.read_text(), page) == page.read_text()


def test_no_table_is_typed(tables):
    """Every line of a table on the page stands between the markers of one that is written."""
    name, typed = None, []
    for line in tables.PAGE.read_text().splitlines():
        if marker := re.fullmatch(r"<!-- (.+) -->", line):
            name = None if marker[1] == "end" else marker[1]
        elif line.startswith("|") and name not in tables.TABLES:
            typed.append(line)
    assert not typed


def test_a_changed_result_changes_the_page(tables, monkeypatch):
    found = tables.gpu()
    found["LLaDA-8B"][2]["mass"] = 1.789
    monkeypatch.setattr(tables, "gpu", lambda: found)
    assert "1.789×" in tables.written(tables.PAGE.read_text())
    found["LLaDA-8B"][2]["mass_range"] = [1.781, 1.818]  # as runs keep them from now on
    assert "1.789× (1.78–1.82)" in tables.written(tables.PAGE.read_text())


@pytest.mark.parametrize(
    ("name", "table", "at", "value", "shown"),
    [
        ("peers", "peers-llada", ("rows", 4, "cpu_ratio"), 1.777, "1.78× ("),
        ("peers", "peers-llada", ("rows", 4, "cpu_ratio_range"), [0.5, 3.21], "(0.50–3.21)"),
        ("peers_reuse", "peers-reuse", ("rows", 2, "cpu_ratio"), 1.777, "1.78× ("),
        ("scale", "scale-workers", ("workers", 3, "efficiency"), 0.1234, "12.3%"),
        ("scale", "scale-stored", ("store", "ask", "encode"), 0.98765, "0.9877"),
        ("scale", "scale-capacity", ("capacity", 1, "30 s"), 77077, "77077"),
        (
            "long_decoding",
            "long-decoding",
            ("after", "served", "stages", "scene", "cpu_s"),
            77.7,
            "77.7 s",
        ),
        ("streaming", "streamed", (0, "bytes_a_step"), 77_770_000, "77.77 MB"),
    ],
)
def test_a_changed_result_changes_its_table(tables, monkeypatch, name, table, at, value, shown):
    right = sys.modules["table_parts.markdown"].raw

    def changed(asked):
        found = here = right(asked)
        if asked == name:
            for key in at[:-1]:
                here = here[key]
            here[at[-1]] = value
        return found

    assert shown not in tables.TABLES[table]()
    for part in ("peers", "scale", "long"):
        monkeypatch.setattr(sys.modules[f"table_parts.{part}"], "raw", changed)
    assert shown in tables.TABLES[table]()


def test_the_kernel_is_exact_in_every_case_measured(tables):
    found = json.loads((BENCH / "gpu.json").read_text())
    assert {row["dtype"] for row in found["exact"]} == {"bfloat16", "float16", "float32"}
    for row in found["exact"]:
        limit = 1e-5 if row["dtype"] == "float32" else 1e-3
        assert max(row[name] for name in ("column_sum", "entropy", "region_sum", "rolled")) <= limit
    assert all(row["same_logits"] for row in found["same"] if "same_logits" in row)
