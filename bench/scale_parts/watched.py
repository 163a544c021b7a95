"""A simulated run, watched: how long everything took, who used the processor, who waited for whom."""

import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from floatscope.engine import Plan, Run, execute

from .simulated import SETTINGS, memory
from .templates import llada

TICKS = os.sysconf("SC_CLK_TCK")


class Watch:
    """Times of storing, and processor seconds from the first to the last."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.stored: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "stored":
            if not self.stored:
                self.first = processor()
            self.stored[event["shard"]] = time.time()
            if len(self.stored) == self.total:
                self.last = processor()

    def share(self, who: str, span: float) -> float:
        return (self.last[who] - self.first[who]) / span


def processor() -> dict[str, float]:
    """Processor seconds so far of this process, of Ray's own two that it started, of the machine."""
    ray = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            name, rest = text.partition("(")[2].rpartition(")")[::2]
            fields = rest.split()
            if name in ("raylet", "gcs_server") and int(fields[1]) == os.getpid():
                ray += int(fields[11]) + int(fields[12])
    machine = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    busy = sum(machine) - machine[3] - machine[4]  # without idling and waiting for the disk
    return {"driver": time.process_time(), "ray": ray / TICKS, "machine": busy / TICKS}


def simulate(plan: Plan, workers: int, templates: Path, directory: Path) -> dict[str, Any]:
    """One run, and what it took: the time from the first beginning to the last storing counts."""
    with tempfile.TemporaryDirectory() as gate:
        os.environ[SETTINGS] = json.dumps(
            {"templates": str(templates), "gate": gate, "workers": workers, "sizes": llada()}
        )
        watch, start = Watch(len(plan.shards)), time.time()
        execute(plan, directory, engine="ray", workers=workers, on_event=watch)
        return _read(plan, workers, directory, watch, start, time.time())


def quietest(plan: Plan, workers: int, templates: Path, folder: Path, tries: int) -> dict[str, Any]:
    """The run that other processes of the machine disturbed least; a quiet one is enough."""
    rows: list[dict[str, Any]] = []
    while len(rows) < tries and not (rows and rows[-1]["others_cpu"] < 0.2):
        with tempfile.TemporaryDirectory(dir=folder) as directory:
            rows.append(simulate(plan, workers, templates, Path(directory) / "run"))
    return min(rows, key=lambda row: float(row["others_cpu"]))


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
    gaps, tails, used = [], [], []
    for mine in by_worker.values():
        mine.sort(key=lambda one: one["begun"])
        gaps += [b["begun"] - a["ended"] for a, b in pairwise(mine)]
        used += [b["cpu"] - a["cpu"] for a, b in pairwise(mine)]
        tails.append(last - mine[-1]["ended"])
    delays = [watch.stored[shard] - one["ended"] for shard, one in done.items()]
    shards = len(plan.shards)
    ours = watch.share("driver", span) + watch.share("ray", span) + sum(used) / span
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
        "efficiency": slept
        / (workers * span),  # with the last shards, when some have nothing to do
        "busy": slept / (slept + sum(gaps)) if slept else 0.0,
        "idle_between_shards": statistics.mean(gaps) if gaps else 0.0,
        "idle_at_the_end": statistics.mean(tails),
        "end_to_stored": statistics.median(delays),
        "end_to_stored_most": max(delays),
        "driver_cpu": watch.share("driver", span),
        "driver_cpu_a_shard": watch.share("driver", span) * span / shards,
        "ray_cpu": watch.share("ray", span),
        "worker_cpu_a_shard": statistics.mean(used) if used else 0.0,
        "others_cpu": watch.share("machine", span) - ours,
        "driver_memory": memory("VmRSS"),
        "worker_memory": max(one["memory"] for one in done.values()),
    }
