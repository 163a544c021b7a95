"""The clock and the memory: runs every way of one library and prints what it cost as JSON."""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from task import Fact, Task, Way, reference
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Squares(TorchDispatchMode):
    """The most elements of any tensor of S×S that an operation returned, for more than one head."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.elements = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and tensor.shape[-2:] == (self.size, self.size):
                heads = tensor.numel() // self.size**2
                self.elements = max(self.elements, tensor.numel() if heads > 1 else 0)
        return out


def size_of(kept: object) -> int:
    """Bytes of all tensors in it, each storage once."""
    if isinstance(kept, int):
        return kept
    storages: dict[int, int] = {}

    def visit(thing: Any) -> None:
        if isinstance(thing, Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif hasattr(thing, "values"):
            visit(list(thing.values()))
        elif isinstance(thing, list | tuple):
            for part in thing:
                visit(part)

    visit(kept)
    return sum(storages.values())


def high_water() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def peak(way: Way, task: Task, threads: int) -> int:
    """Bytes that a decoding adds at its peak, in a forked process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(threads)
            way(replace(task, size=64))  # brings in the weights and small buffers
            ctypes.CDLL(None).malloc_trim(
                0
            )  # what is free goes back, or it would hide what is used
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
            before = high_water()
            found = way(task)
            os.write(write, str(high_water() - before).encode())
            del found
        finally:
            os._exit(0)
    os.close(write)
    answer = os.read(read, 64)
    os.close(read)
    os.waitpid(child, 0)
    if not answer:
        raise SystemExit("A measuring process died: is there enough memory? Use smaller --sizes.")
    return int(answer)


def work(
    ways_of: Callable[[Path], dict[str, Way]],
    facts_of: Callable[[Path], Fact],
    versions: dict[str, str],
) -> None:
    """Measure every way of one library; the first is the plain floor. Prints one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+")
    for name in ("rounds", "answer", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a pool of threads does not survive a fork: it starts afterwards
    ways = ways_of(args.folder)
    small = Task(args.folder, 64, args.answer, args.steps)
    for way in ways.values():
        way(small)  # libraries and small buffers are there before we look
    tasks = [Task(args.folder, size, args.answer, args.steps) for size in args.sizes]
    say = lambda text: print(f"  {text}", file=sys.stderr, flush=True)  # noqa: E731
    say("memory")
    peaks = {(t.size, name): peak(w, t, args.threads) for t in tasks for name, w in ways.items()}
    torch.set_num_threads(args.threads)
    rows = []
    for task in tasks:
        say(f"S = {task.size}: exactness, then {args.rounds} rounds")
        checked = exactness(ways, task)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                start = time.process_time(), time.perf_counter()
                found = way(task)
                stop = time.process_time(), time.perf_counter()
                taken = [(b - a) / task.steps for a, b in zip(start, stop, strict=True)]
                times[name].append((taken[0], taken[1]))
                del found
        floor = times[next(iter(ways))]
        for name, took in times.items():
            cpu, wall = (
                sorted(t[i] / f[i] for t, f in zip(took, floor, strict=True)) for i in (0, 1)
            )
            rows.append(
                {
                    "S": task.size,
                    "way": name,
                    "cpu_ms_per_step": round(statistics.median(t[0] for t in took) * 1e3, 2),
                    "wall_ms_per_step": round(statistics.median(t[1] for t in took) * 1e3, 2),
                    "cpu_ratio": round(statistics.median(cpu), 3),
                    "cpu_ratio_range": [round(cpu[0], 3), round(cpu[-1], 3)],
                    "wall_ratio": round(statistics.median(wall), 3),
                    "peak_bytes": peaks[task.size, name],
                    **checked[name],
                }
            )
    versions = {"torch": torch.__version__, **versions}
    print(json.dumps({"versions": versions, "rows": rows, "facts": facts_of(args.folder)}))


def exactness(ways: dict[str, Way], task: Task) -> dict[str, dict[str, Any]]:
    """Each way once: its sums against float64, its logits and tokens against the plain ones."""
    plain = next(iter(ways.values()))(task)
    truth = [reference(task, canvas) for canvas in plain.canvases]
    checked = {}
    for name, way in ways.items():
        with Squares(task.size) as squares:
            found = way(task)
        same = all(map(torch.equal, found.canvases, plain.canvases))
        pairs = zip(found.sums, truth, strict=False)
        logits = zip(found.logits, plain.logits, strict=True)
        checked[name] = {
            "kept_bytes_per_step": size_of(found.kept) // task.steps,
            "square_bytes": squares.elements * 4,
            "same_tokens": same,
            "logits_difference": max(float((a - b).abs().max()) for a, b in logits),
            "sums_difference": max((float((a - b).abs().max()) for a, b in pairs), default=None),
        }
    return checked
