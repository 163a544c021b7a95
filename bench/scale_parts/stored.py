"""One shard's way to the disk, step by step in one process, and how many GPUs one driver can serve.

Encoding is the worker's work, and its GPU waits for it. Storing (checksum, two files, four syncs) is
the driver's, one shard after the other: it bounds the shards a second of a whole run.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from floatscope.engine.shards import Shards, encode

from .simulated import Simulated
from .templates import llada

SIZES = {"noise-1MB": 2**20, "noise-16MB": 2**24, "noise-128MB": 2**27}
KINDS: dict[str, dict[str, Any]] = {
    "ask": {"kind": "ask", "start": 0, "stop": 32, "setting": "sampler-confidence"},
    "trace": {"kind": "trace", "start": 8, "stop": 16, "view": 0, "domain": "questions"},
    **{name: {"kind": "noise", "bytes": size} for name, size in SIZES.items()},
}
WORTH = 0.9  # of the GPUs' time


def steps(templates: Path, folder: Path, rounds: int = 5) -> dict[str, dict[str, float]]:
    """Seconds of each step by kind of shard, medians; `_cpu` is what the processor had to do."""
    worker = Simulated(Shards(templates), llada())
    shards, found = Shards(folder), {}
    folder.mkdir(exist_ok=True)
    for name, spec in KINDS.items():
        output = worker({**spec, "seconds": 0.0, "as": "mdm"}, lambda done, of: None)
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            data = _timed(times, "encode", partial(encode, "x", "key", output))
            _timed(times, "store", partial(shards.write, "x", data))
            _timed(times, "check", partial(shards.verify, "x", "key"))
            _timed(times, "read", partial(shards.read, "x"))
        shards.remove("x")
        found[name] = {step: statistics.median(each) for step, each in times.items()}
        found[name]["bytes"] = len(data)
    return found


def _timed(times: dict[str, list[float]], step: str, run: Callable[[], Any]) -> Any:
    start, used = time.perf_counter(), time.process_time()
    result = run()
    times.setdefault(step, []).append(time.perf_counter() - start)
    times.setdefault(f"{step}_cpu", []).append(time.process_time() - used)
    return result


def capacity(found: dict[str, Any], seconds: tuple[float, ...]) -> list[dict[str, Any]]:
    """For shards of so many GPU-seconds: up to how many GPUs are 90 % of their time used?

    Two bounds. A GPU waits while its shard is encoded: no number of GPUs is worth it if that alone is
    over a tenth. And the driver takes shards one by one, its processor time in the run without GPU
    time and the waiting for the disk: N GPUs bring N / (t + encode) shards a second.
    """
    rows = []
    for name, step in found["store"].items():
        runs = [row for row in found["ceiling"] if row["kind"] == name]
        driver = min(row["driver_cpu_a_shard"] for row in runs)
        driver += max(0.0, step["store"] - step["store_cpu"])
        driver = min(driver, 1 / max(row["shards_per_second"] for row in runs))  # it was that fast
        row: dict[str, Any] = {"kind": name, "driver_seconds": driver, "ceiling": 1 / driver}
        for t in seconds:
            whole = t + step["encode_cpu"]  # a host has a core a GPU
            row[f"{t:g} s"] = int(WORTH * whole / driver) if t / whole >= WORTH else 0
        rows.append(row)
    return rows
