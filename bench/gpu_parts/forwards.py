"""One forward: plain, traced, eager; by length, by layers; where its time goes."""

import gc
import json
import statistics
from collections.abc import Iterable

import torch

from floatscope.models import Direction, Model

from .common import GIB, KEEPS, Row, alone, build, in_rounds, in_turn, over_plain, peak, ways_of


def forward(name: str, sizes: Iterable[int], rounds: int) -> list[Row]:
    rows, model = [], build(name)
    for batch, size in [(8, 1024), *((1, size) for size in sizes)]:
        ways = ways_of(model, batch, size, KEEPS)
        times = in_rounds(ways, rounds)
        row: Row = {"model": name, "batch": batch, "S": size}
        row["plain_ms"] = statistics.median(times["plain"])
        row["plain_GiB"] = peak(ways["plain"])
        for way in KEEPS:
            row |= over_plain(times, way)
            row[f"{way}_memory"] = peak(ways[way]) / row["plain_GiB"]
        row |= eager(model, batch, size, row["plain_ms"])
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def eager(model: Model, batch: int, size: int, plain_ms: float) -> Row:
    """Every layer's weights materialised and kept, as `output_attentions=True` does."""
    ids = torch.randint(0, 120000, (batch, size), device="cuda")
    before = model.net.config._attn_implementation
    model.net.set_attn_implementation("eager")

    @torch.inference_mode()
    def run() -> object:
        causal = model.direction is Direction.CAUSAL
        return model.net(
            ids, output_attentions=True, use_cache=False, is_causal=causal, logits_to_keep=1
        ).attentions

    try:
        used = peak(alone(run))
        return {"eager": in_turn({"eager": alone(run)}, 1)["eager"] / plain_ms, "eager_GiB": used}
    except torch.cuda.OutOfMemoryError:
        return {"eager": None, "eager_GiB": None}
    finally:
        model.net.set_attn_implementation(before)
        gc.collect()
        torch.cuda.empty_cache()


def long() -> list[Row]:
    """Traced where materialised attention would need terabytes."""
    model, rows = build("LLaDA-8B"), []
    for size in (16384, 32768):
        ways = ways_of(model, 1, size, ["mass"])
        times = in_turn(ways, 1)
        eager_gib = model.n_layers * model.n_heads * size**2 * 2 / GIB
        row = {"S": size, "plain_ms": times["plain"], "mass": times["mass"] / times["plain"]}
        row |= {"peak_GiB": peak(ways["mass"]), "eager_would_take_GiB": eager_gib}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def growth() -> list[Row]:
    """How the cost falls with fewer layers: a forward of LLaDA-8B's shape at 4,096 tokens."""
    model, rows = build("LLaDA-8B"), []
    for n in (4, 8, 16, 32):
        ways = ways_of(model, 1, 4096, ["mass", "all but rollout"], range(0, 32, 32 // n))
        times = in_rounds(ways, 4)
        row: Row = {"layers": n}
        for way in ways.keys() - {"plain"}:
            row |= over_plain(times, way)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def profiled() -> list[Row]:
    """Where the time of a traced forward goes: the kernels that a plain one does not run."""
    model, rows = build("LLaDA-8B"), []
    ways = ways_of(model, 1, 4096, KEEPS)
    for name in ("plain", "mass", "all"):
        kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with ways[name]() as run:
            run()
            run()
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=kinds) as profile:
                run()
                torch.cuda.synchronize()
        events = [e for e in profile.key_averages() if e.self_device_time_total > 0]
        events = [e for e in events if str(e.device_type).endswith("CUDA")]
        events.sort(key=lambda e: -e.self_device_time_total)
        total = sum(e.self_device_time_total for e in events) / 1e3
        row = {"way": name, "S": 4096, "kernels_ms": total}
        row["top"] = [[e.key[:70], e.count, e.self_device_time_total / 1e3] for e in events[:22]]
        rows.append(row)
        print(name, f"{total:.1f} ms in kernels")
        for key, count, ms in row["top"]:
            print(f"  {ms:8.2f} ms {count:5d} × {key}")
    return rows
