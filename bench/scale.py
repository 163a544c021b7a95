"""A study on many GPUs, simulated: the real engine and Ray, workers that sleep as GPUs would work.

Everything but the model is real: Ray's actors, jobs handed out, shards encoded, sent, checked, synced
and logged, the manifest, and at last the tables and the page. It measures how throughput grows with
the workers, what the engine can do when shards cost nothing, and what is left over: starting, the
last shards, the serial report.

    python bench/scale.py [--json bench/scale.json] [--only PART ...]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from shard_bytes import llada
from simulated import SETTINGS, memory

from floatscope.engine import Plan, Run, Shard, execute

PARTS = ("start", "workers", "ceiling", "study")
HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


def sleeping(count: int, seconds: float, kind: str, size: int = 0) -> Plan:
    """So many equal shards: noise of a size, a shard of answers, or a shard of measured traces."""
    spec: dict[str, Any] = {"kind": kind, "seconds": seconds, "bytes": size, "as": "mdm"}
    if kind == "trace":
        spec |= {"start": 8, "stop": 16, "view": 0, "domain": "questions"}
    elif kind == "ask":
        spec |= {"start": 0, "stop": 32, "setting": "sampler-confidence"}
    shards = tuple(Shard(f"{kind}-{i:05d}", spec) for i in range(count))
    return Plan({"simulated": True}, "simulated:make", shards)


class Watch:
    """Times of storing, and processor time of the driver and of Ray's own two processes."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.stored: dict[str, float] = {}
        self.first = self.last = (0.0, 0.0)  # processor seconds: driver, Ray

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] != "stored":
            return
        if not self.stored:
            self.first = time.process_time(), _ray_seconds()
        self.stored[event["shard"]] = time.time()
        if len(self.stored) == self.total:
            self.last = time.process_time(), _ray_seconds()


def _ray_seconds() -> float:
    """Processor time of the raylet and the cluster's store that this process started."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            name, rest = text.partition("(")[2].rpartition(")")[::2]
            fields = rest.split()
            if name in ("raylet", "gcs_server") and int(fields[1]) == os.getpid():
                total += int(fields[11]) + int(fields[12])
    return total / TICKS


def simulate(plan: Plan, workers: int, templates: Path, directory: Path) -> dict[str, Any]:
    """One run, and what it took: the time from the first beginning to the last storing counts."""
    with tempfile.TemporaryDirectory() as gate:
        os.environ[SETTINGS] = json.dumps(
            {"templates": str(templates), "gate": gate, "workers": workers, "sizes": llada()}
        )
        watch, start = Watch(len(plan.shards)), time.time()
        execute(plan, directory, engine="ray", workers=workers, on_event=watch)
        end = time.time()
    return _read(plan, workers, directory, watch, start, end)


def _read(
    plan: Plan, workers: int, directory: Path, watch: Watch, start: float, end: float
) -> dict[str, Any]:
    run = Run(directory)
    done = {s.id: run.read(s.id, ()).meta["simulated"] for s in plan.shards}
    begun, last = min(d["begun"] for d in done.values()), max(watch.stored.values())
    span, slept = last - begun, sum(s.spec["seconds"] for s in plan.shards)
    size = sum(s["bytes"] for s in (run.manifest() or {})["result"]["shards"])
    by_worker: dict[int, list[dict[str, float]]] = {}
    for one in done.values():
        by_worker.setdefault(one["pid"], []).append(one)
    gaps, tails = [], []
    for mine in by_worker.values():
        mine.sort(key=lambda one: one["begun"])
        gaps += [b["begun"] - a["ended"] for a, b in zip(mine, mine[1:], strict=False)]
        tails.append(last - mine[-1]["ended"])
    delays = [watch.stored[shard] - one["ended"] for shard, one in done.items()]
    shards = len(plan.shards)
    return {
        "workers": workers,
        "shards": shards,
        "seconds_a_shard": slept / shards,
        "bytes_a_shard": size / shards,
        "start_seconds": begun - start,
        "work_seconds": span,
        "close_seconds": end - last,
        "shards_per_second": shards / span,
        "bytes_per_second": size / span,
        "efficiency": slept / (workers * span),
        "idle_between_shards": statistics.median(gaps) if gaps else None,
        "idle_at_the_end": statistics.mean(tails),
        "end_to_stored": statistics.median(delays),
        "end_to_stored_most": max(delays),
        "driver_cpu_share": (watch.last[0] - watch.first[0]) / span,
        "ray_cpu_share": (watch.last[1] - watch.first[1]) / span,
        "driver_memory": memory("VmRSS"),
        "driver_memory_most": memory(),
        "worker_memory": max(one["memory"] for one in done.values()),
    }


def start_up() -> dict[str, float]:
    """What a worker does before its first shard, in processes of their own, best of three."""
    codes = {
        "python, numpy, engine": "import floatscope.engine",
        "torch, transformers, studies": "import floatscope.studies.worker",
        "and loading the 12M pair": "import floatscope as fs, floatscope.studies.worker as w;"
        "fs.load('pair/mdm', device='cpu')",
        "ray": "import ray",
    }
    found = {}
    for name, code in codes.items():
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - start)
        found[name] = min(times)
    return found


def by_workers(args: argparse.Namespace, templates: Path, folder: Path) -> list[dict[str, Any]]:
    """Shards of answers and of traces that take a second, by ever more workers."""
    rows = []
    for kind in ("ask", "trace"):
        for workers in args.workers:
            plan = sleeping(workers * args.rounds, args.seconds, kind)
            row = simulate(plan, workers, templates, folder / f"{kind}-{workers}")
            rows.append({"kind": kind, **row})
            _say(rows[-1])
    return rows


def ceiling(args: argparse.Namespace, templates: Path, folder: Path) -> list[dict[str, Any]]:
    """Shards that take no time: all that is left is the engine."""
    rows = []
    sizes = {"noise-1MB": 2**20, "noise-16MB": 2**24, "noise-128MB": 2**27}
    counts = {"ask": 400, "trace": 150, "noise-1MB": 150, "noise-16MB": 24, "noise-128MB": 4}
    for name, count in counts.items():
        for workers in (1, 2, 4, 16) if count > 50 else (1, 2):
            plan = sleeping(count, 0.0, name.partition("-")[0], sizes.get(name, 0))
            row = simulate(plan, workers, templates, folder / f"{name}-{workers}")
            rows.append({"kind": name, **row})
            _say(rows[-1])
    return rows


def _say(row: dict[str, Any]) -> None:
    short = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(short), file=sys.stderr, flush=True)
