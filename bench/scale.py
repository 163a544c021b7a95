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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scale_parts import counting, stored
from scale_parts.tables import rounded, show
from scale_parts.watched import quietest, simulate

from floatscope.engine import Plan, Shard

PARTS = ("start", "store", "workers", "ceiling", "study")
HERE = Path(__file__).parent


def sleeping(count: int, seconds: float, kind: str) -> Plan:
    """So many shards: noise of a size, shards of answers, or of measured traces.

    Their times are spread evenly, a quarter up and down: equal ones would all end together.
    """
    spec = {**stored.KINDS[kind], "as": "mdm"}
    shards = tuple(
        Shard(f"{kind}-{i:05d}", {**spec, "seconds": seconds * (0.75 + 0.5 * (i * 0.618034 % 1))})
        for i in range(count)
    )
    return Plan({"simulated": True}, "scale_parts.simulated:make", shards)


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
    """Shards of answers and of traces, by ever more workers."""
    rows = []
    for kind in ("ask", "trace"):
        for workers in args.workers:
            if kind == "trace" and workers > 8 * (os.cpu_count() or 1):
                continue  # a host has a core a GPU; here the few cores would be what is measured
            plan = sleeping(workers * args.rounds, args.seconds, kind)
            rows.append({"kind": kind, **quietest(plan, workers, templates, folder, args.tries)})
            say(rows[-1])
    return rows


def ceiling(args: argparse.Namespace, templates: Path, folder: Path) -> list[dict[str, Any]]:
    """Shards that take no time: all that is left is the engine."""
    rows = []
    counts = {"ask": 400, "trace": 120, "noise-1MB": 120, "noise-16MB": 24, "noise-128MB": 4}
    for name, count in counts.items():
        for workers in (1, 4, 16) if count > 50 else (1, 2):
            plan = sleeping(count, 0.0, name)
            rows.append({"kind": name, **quietest(plan, workers, templates, folder, args.tries)})
            say(rows[-1])
    return rows


def study(args: argparse.Namespace, templates: Path, folder: Path) -> dict[str, Any]:
    """The whole plan of a study, its times shrunk alike; then its tables and its page, in earnest."""
    request = counting.example(args.questions, args.questions, view=1)
    seconds = {"diffusion": counting.ASSUMED, "causal": counting.ASSUMED}
    planned = counting.planned(request, seconds)
    shards = []
    for shard, gpu in planned:
        kind = "mdm" if shard.spec["model"] == request.models[0] else "arm"
        spec = {**shard.spec, "seconds": gpu / args.shrink, "as": kind, "view": request.view}
        shards.append(Shard(shard.id, spec))
    plan = Plan(request.model_dump(mode="json"), "scale_parts.simulated:make", tuple(shards))
    found = simulate(plan, args.study_workers, templates, folder / "study")
    found |= {"questions": args.questions, "shrink": args.shrink}
    say(found)
    code = (
        "import sys, time, json; start = time.time();"
        "from floatscope.studies import Findings; from floatscope.studies.tables import write_results;"
        "from floatscope.report.build import write_report;"
        "found = Findings(sys.argv[1]); read = time.time(); write_results(found); told = time.time();"
        "write_report(found); print(json.dumps({'open_seconds': read - start,"
        "'tables_seconds': told - read, 'page_seconds': time.time() - told}))"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, folder / "study"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return found | json.loads(said.stdout)


def say(row: dict[str, Any]) -> None:
    short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
    print(json.dumps(short), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=2.0, help="A shard's time on the GPU.")
    parser.add_argument("--rounds", type=int, default=5, help="Shards a worker.")
    parser.add_argument("--tries", type=int, default=1, help="Again where others were busy.")
    parser.add_argument("--questions", type=int, default=1000, help="Of the simulated study.")
    parser.add_argument("--shrink", type=float, default=20.0, help="Its times are divided by this.")
    parser.add_argument("--study-workers", type=int, default=32)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="None: show.")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.json and args.json.exists():
        found = json.loads(args.json.read_text())  # parts that are not run again stay
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        templates = folder / "templates"
        command = [sys.executable, f"{HERE}/shard_bytes.py", "--templates", str(templates)]
        subprocess.run(command, check=True)  # in a process of its own: the driver needs no torch
        found["machine"] = f"{os.cpu_count()} cores, Python {platform.python_version()}"
        for part in args.only:
            if part == "start":
                found[part] = start_up()
            elif part == "store":
                found[part] = stored.steps(templates, folder / "steps")
            elif part == "workers":
                found[part] = by_workers(args, templates, folder)
            elif part == "ceiling":
                found[part] = ceiling(args, templates, folder)
            else:
                found[part] = study(args, templates, folder)
            if "store" in found and "ceiling" in found:
                found["capacity"] = stored.capacity(found, (1, 3, 10, 30, 100))
            if args.json:
                args.json.write_text(json.dumps(rounded(found), indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
