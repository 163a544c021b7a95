"""The engine with many workers and no model: the tables of `bench/scale.json`."""

from collections.abc import Callable
from typing import Any

from .markdown import raw, table

Write = Callable[[dict[str, Any]], str]
WORKERS: dict[str, Write] = {
    "shards": lambda r: r["kind"],
    "workers": lambda r: str(r["workers"]),
    "shards/s": lambda r: f"{r['shards_per_second']:.2f}",
    "MB/s": lambda r: f"{r['bytes_per_second'] / 1e6:.2f}",
    "efficiency": lambda r: f"{r['efficiency']:.1%}",
    "busy": lambda r: f"{r['busy']:.1%}",
    "idle between two": lambda r: f"{1e3 * r['idle_between_shards']:.0f} ms",
    "end to stored (most)": lambda r: (
        f"{1e3 * r['end_to_stored']:.0f} ms ({1e3 * r['end_to_stored_most']:.0f})"
    ),
    "driver CPU": lambda r: f"{r['driver_cpu']:.1%}",
    "Ray CPU": lambda r: f"{r['ray_cpu']:.1%}",
    "start": lambda r: f"{r['start_seconds']:.0f} s",
    "others' CPU": lambda r: f"{r['others_cpu']:.2f}",
}
CEILING: dict[str, Write] = {
    "shards": lambda r: r["kind"],
    "kB": lambda r: f"{r['bytes_a_shard'] / 1e3:.0f}",
    "workers": lambda r: str(r["workers"]),
    "shards/s": lambda r: f"{r['shards_per_second']:.1f}",
    "MB/s": lambda r: f"{r['bytes_per_second'] / 1e6:.1f}",
    "driver CPU a shard": lambda r: f"{1e3 * r['driver_cpu_a_shard']:.1f} ms",
    "worker CPU a shard": lambda r: f"{1e3 * r['worker_cpu_a_shard']:.0f} ms",
    "worker memory": lambda r: f"{r['worker_memory'] / 1e6:.0f} MB",
    "others' CPU": lambda r: f"{r['others_cpu']:.2f}",
}


def _written(columns: dict[str, Write], rows: list[dict[str, Any]]) -> str:
    return table(list(columns), [[write(row) for write in columns.values()] for row in rows])


def workers(rows: Any = None) -> str:
    return _written(WORKERS, rows or raw("scale")["workers"])


def ceiling(rows: Any = None) -> str:
    return _written(CEILING, rows or raw("scale")["ceiling"])


def stored(found: Any = None) -> str:
    """A shard's way to the disk, in seconds."""
    names = {
        "encode": "encode", "encode_cpu": "encode_cpu", "store": "store", "store_cpu": "store_cpu",
        "check": "check (at a resume)", "read": "read",
    }  # fmt: skip
    kinds = found or raw("scale")["store"]
    rows = [[kind, *(f"{row[name]:.4f}" for name in names)] for kind, row in kinds.items()]
    return table(["shard", *names.values()], rows)


def capacity(rows: Any = None) -> str:
    """`d`, the driver's time a shard, and how many GPUs it serves, by a shard's GPU-seconds."""
    rows = rows or raw("scale")["capacity"]
    times = [name for name in rows[0] if name.endswith(" s")]
    lines = [
        [row["kind"], f"{1e3 * row['driver_seconds']:.1f} ms", f"{row['ceiling']:.0f}"]
        + [str(row[t]) if row[t] else "–" for t in times]
        for row in rows
    ]
    return table(["shard", "d", "shards/s at most", *(f"t = {t}" for t in times)], lines)
