"""What a study's trace shard costs: time over untraced decoding, host memory, bytes per example.

    python bench/study_shard.py                                     # a tiny checkpoint in LLaDA's format
    python bench/study_shard.py --device cuda --model DIR --examples 16 --tokens 1800 --steps 32 \
        --studies floating structure retrieval

One process. The same prompts are decoded without tracing and then as a shard of a study, without controls and
without the viewer, and with viewed examples, which shows what those add. Every way is run once
before it is timed, then the ways take turns; ratios are medians over the rounds. CPU time is given beside
wall time, for machines that others use too. On a GPU its utilisation is read from nvidia-smi twice a second.
The C library's allocator is told to keep freed memory: otherwise large traces would speed up the untraced
decoding of the same process, which then finds memory that it need not ask the system for.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import write_questions

from floatscope.engine import Output
from floatscope.engine.shards import encode
from floatscope.models import tiny
from floatscope.studies import request_of
from floatscope.studies.kept_models import KeptModels
from floatscope.studies.measuring import threads_of
from floatscope.studies.worker import ShardWorker


class Watched:
    """Sample this process's memory, and a GPU's utilisation, inside a `with` block."""

    def __init__(self, device: str) -> None:
        self.device, self.peak = device, 0
        self.used: list[float] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._memory, daemon=True)]
        if device.startswith("cuda"):
            self._threads.append(threading.Thread(target=self._utilisation, daemon=True))

    def __enter__(self) -> "Watched":
        self.before = resident()
        self.start, self.cpu = time.perf_counter(), time.process_time()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.start
        self.cpu = time.process_time() - self.cpu
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _memory(self) -> None:
        while not self._ended.wait(0.01):
            self.peak = max(self.peak, resident())

    def _utilisation(self) -> None:
        ask = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._ended.wait(0.5):
            said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
            self.used += [float(line) for line in said.splitlines()[:1]]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: a tiny one, 8 layers × 8 heads × width 256")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of a prompt, about")
    parser.add_argument("--length", type=int, default=16, help="tokens generated")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--studies", nargs="+", default=["floating", "structure", "retrieval"])
    parser.add_argument("--threads", type=int, default=1, help="of the model on a CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, help="examples of the run before; default: all")
    parser.add_argument("--view", type=int, default=1, help="examples that the viewer shows")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        kept = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | kept)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, Path(folder))
    for name, value in rows.items():
        print(f"{name:44} {value}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    shape = tiny.Shape(layers=8, width=256, heads=8, kv_heads=8, ffn=512, context=8192)
    model_path = args.model or str(tiny.write("LLaDA", folder / "model", shape))
    models, data = KeptModels(), folder / "data.jsonl"
    fields: dict[str, Any] = {
        "models": [model_path], "studies": args.studies, "data": str(data), "chat": False,
        "limit": args.examples, "length": args.length, "steps": args.steps, "controls": 0,
        "device": args.device, "threads": args.threads,
    }  # fmt: skip
    model = models.get(model_path, args.device, "auto", None)
    loaded = resident()
    characters = 4 * args.tokens
    for _ in range(3):  # a prompt has words of its template beside the passages
        write_questions(data, args.examples, characters)
        worker = ShardWorker(request_of(fields), models)
        prompts = [worker._prompt("questions", i, model)[1] for i in range(args.examples)]
        size = np.mean([len(model.encode(prompt).ids) for prompt in prompts])
        characters = max(40, round(characters * args.tokens / size))
    spec = {"kind": "trace", "model": model_path, "domain": "questions", "start": 0}
    spec |= {"stop": args.examples}

    def shard(view: int) -> Callable[..., tuple[Output, int]]:
        request = request_of(fields | {"view": view})
        worker = ShardWorker(request, models, threads=threads_of(1))

        def do(examples: int = args.examples) -> tuple[Output, int]:
            output = worker(spec | {"stop": examples}, lambda done, of: None)
            return output, len(encode("x", "", output))

        return do

    sampler = worker.sampler(model)
    torch.set_num_threads(args.threads)
    ways: dict[str, Callable[..., Any]] = {
        "plain": lambda examples=args.examples: model.generate(prompts[:examples], sampler),
        "traced": shard(0),
        "viewed": shard(args.view),
    }
    for do in ways.values():
        do(args.warm or args.examples)
    results: dict[str, Any] = {}
    taken: dict[str, list[Watched]] = {name: [] for name in ways}
    for turn in range(args.rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            with Watched(args.device) as watched:
                results[name] = ways[name]()
            taken[name].append(watched)

    def over(way: str, what: str) -> float:
        pairs = zip(taken[way], taken["plain"], strict=True)
        return round(float(np.median([getattr(a, what) / getattr(b, what) for a, b in pairs])), 3)

    def seconds(way: str) -> float:
        return round(float(np.median([one.seconds for one in taken[way]])), 2)

    peak = {way: round((max(w.peak for w in taken[way]) - loaded) / 1e6, 1) for way in ways}
    size, with_view = results["traced"][1], results["viewed"][1]
    rows: dict[str, Any] = {
        "examples": args.examples,
        "prompt tokens": round(float(np.mean([len(one.prompt.ids) for one in results["plain"]]))),
        "layers × heads × steps": f"{model.n_layers} × {model.n_heads} × {args.steps}",
        "batches": results["traced"][0].meta.get("batches") or "one at a time",
        "untraced decoding (s)": seconds("plain"),
        "traced shard (s)": seconds("traced"),
        "traced over untraced": over("traced", "seconds"),
        "… in CPU time": over("traced", "cpu"),
        "viewed examples": args.view,
        "with viewed examples, over untraced": over("viewed", "seconds"),
        "… in CPU time, with viewed examples": over("viewed", "cpu"),
        "peak memory beyond the model (MB)": peak["traced"],
        "… with viewed examples (MB)": peak["viewed"],
        "shard per example (MB)": round(size / args.examples / 1e6, 3),
        "more for a viewed example (MB)": round((with_view - size) / args.view / 1e6, 3),
    }
    used = [share for one in taken["traced"] for share in one.used]
    if used:
        rows["GPU utilisation of the traced shard (%)"] = round(float(np.mean(used)), 1)
    return rows


if __name__ == "__main__":
    main()
