"""What was found, as tables in Markdown."""

import json
from collections.abc import Callable
from typing import Any


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "kind": ("shards", str),
    "workers": ("workers", str),
    "bytes_a_shard": ("kB a shard", lambda x: f"{x / 1e3:.0f}"),
    "shards_per_second": ("shards/s", lambda x: f"{x:.2f}"),
    "bytes_per_second": ("MB/s", lambda x: f"{x / 1e6:.2f}"),
    "efficiency": ("efficiency", lambda x: f"{x:.1%}"),
    "busy": ("busy", lambda x: f"{x:.1%}"),
    "idle_between_shards": ("idle between", lambda x: f"{1e3 * x:.0f} ms"),
    "end_to_stored": ("end to stored", lambda x: f"{1e3 * x:.0f} ms"),
    "driver_cpu": ("driver CPU", lambda x: f"{x:.1%}"),
    "driver_cpu_a_shard": ("driver a shard", lambda x: f"{1e3 * x:.1f} ms"),
    "worker_cpu_a_shard": ("worker a shard", lambda x: f"{1e3 * x:.0f} ms"),
    "start_seconds": ("start", lambda x: f"{x:.0f} s"),
    "others_cpu": ("others' CPU", lambda x: f"{x:.2f}"),
}


def show(found: dict[str, Any]) -> None:
    """Tables in Markdown, as BENCHMARKS.md has them."""
    for part in ("workers", "ceiling"):
        names = [name for name, _ in COLUMNS.values()]
        rows = [[write(r[key]) for key, (_, write) in COLUMNS.items()] for r in found.get(part, ())]
        _table(part, names, rows)
    for part in ("store", "capacity"):
        several = found.get(part, [])
        if isinstance(several, dict):
            several = [{"kind": kind, **row} for kind, row in several.items()]
        for row in several[:1]:
            _table(part, list(row), [[str(v) for v in rounded(r).values()] for r in several])
    for part in ("start", "study"):
        print(part, json.dumps(rounded(found.get(part, {})), indent=1))


def _table(title: str, names: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n")
    for line in (names, ["---"] + ["---:"] * (len(names) - 1), *rows):
        print("| " + " | ".join(line) + " |")
