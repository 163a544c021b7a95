"""What tracing costs: traced against plain against materialised attention, in one run.

One denoising forward of a bidirectional model at each length, interleaved so that a busy machine
disturbs all alike; the best of several rounds counts. Ratios are to the plain forward of the same
run. Peak memory is what a forward adds to what is held before it, from a child process each.

    python bench/overhead.py [--layers 12 --width 256 --heads 8] [--json FILE]
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import floatscope as fs
from floatscope.attention import STATISTICS, Capture, Forward, Labels
from floatscope.attention.statistics import ON_REQUEST
from floatscope.models import tiny

WAYS = ("plain", "traced: mass", "traced: all", "eager", "eager + statistics")


def forwards(model: Any, size: int) -> dict[str, Callable[[], object]]:
    """One forward each way, on the same canvas: half prompt in four regions, half masks."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (1, size), generator=generator)
    answer = min(64, size // 4)
    ids[:, -answer:] = model.mask_id
    visible = model.visibility(size, size, torch.zeros(1, dtype=torch.long))
    region = torch.arange(size)[None] * 4 // size + 2
    region[:, -answer:] = 0
    window = (size - answer, size)

    def plain() -> object:
        return model.predict(ids, *window, visible)

    def traced(keep: set[str], groups: int) -> Callable[[], object]:
        group = region.clamp(max=2) if groups == 3 else torch.zeros_like(region)
        forward = Forward(visible, Labels(group, groups, region, 6), window, cached=False)

        def run() -> object:
            everything = range(model.n_layers), range(model.n_heads)
            with Capture(model, keep, *everything) as capture:
                with capture.forward(forward) as captured:
                    plain()
                if "rows" in keep:  # a step reveals a few positions: here two
                    captured.rows([torch.tensor([0, 1])])
            return captured

        return run

    def eager(statistics: bool) -> Callable[[], object]:
        def run() -> object:
            model.net.set_attn_implementation("eager")
            try:
                with torch.inference_mode():
                    found = model.net(ids, output_attentions=True, use_cache=False, is_causal=False)
            finally:
                model.net.set_attn_implementation("sdpa")
            return [by_hand(a) for a in found.attentions] if statistics else found.attentions

        return run

    one_hot = (region[..., None] == torch.arange(6)).float()  # (1, s, 6)

    def by_hand(a: torch.Tensor) -> object:
        groups = one_hot.mT @ a[0]  # (h, 6, k): column sums by region
        return groups, torch.special.entr(a).sum(-1), a @ one_hot

    return {
        "plain": plain,
        "traced: mass": traced({"mass"}, 1),
        "traced: all": traced(set(STATISTICS) - set(ON_REQUEST), 3),
        "eager": eager(False),
        "eager + statistics": eager(True),
    }


def build(folder: str, args: argparse.Namespace) -> Any:
    shape = tiny.Shape(
        layers=args.layers,
        width=args.width,
        heads=args.heads,
        ffn=args.width * 8 // 3,
        context=max(args.sizes),
        vocab=8192,
        spread=0.05,
    )
    return fs.load(tiny.write("LLaDA", Path(folder) / "model", shape), check=False, device="cpu")


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak(args: argparse.Namespace, size: int, way: str) -> float:
    """Bytes that one forward adds at its peak, measured in a process of its own."""
    command = [sys.executable, __file__, "--child", way, "--sizes", str(size)]
    for name in ("layers", "width", "heads"):
        command += [f"--{name}", str(getattr(args, name))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = build(folder, args)
        forwards(model, 64)[args.child]()  # libraries and small buffers are there before we look
        run = forwards(model, args.sizes[0])[args.child]
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
        before = high_water()
        kept = run()
        print(high_water() - before)
        del kept


def high_water() -> int:
    """Most memory held at once so far, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    console = Console()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = build(folder, args)
        for size in track(args.sizes, "measuring", console=Console(stderr=True)):
            runs = forwards(model, size)
            best = dict.fromkeys(runs, float("inf"))
            for _ in range(max(3, args.rounds * 512 // max(size, 512))):
                for way, run in runs.items():
                    best[way] = min(best[way], seconds(run))
            for way in WAYS:
                rows.append(
                    {
                        "S": size,
                        "way": way,
                        "ms": best[way] * 1e3,
                        "time_ratio": best[way] / best["plain"],
                        "peak_bytes": peak(args, size, way),
                    }
                )
    console.print(
        f"{args.layers} layers × {args.width} wide × {args.heads} heads, float32, "
        f"{torch.get_num_threads()} threads, {platform.processor() or platform.machine()}, "
        f"torch {torch.__version__}"
    )
    console.print(table(rows))
    if args.json:
        args.json.write_text(
            json.dumps({"settings": vars(args) | {"json": None}, "rows": rows}, indent=1)
        )
        console.print(f"wrote {args.json}")


def table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="One forward, batch 1")
    for name in ("S", "way", "time", "× plain", "peak extra memory", "over plain"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        plain = next(r for r in rows if r["S"] == row["S"] and r["way"] == "plain")
        table.add_row(
            str(row["S"]) if row["way"] == "plain" else "",
            row["way"],
            f"{row['ms']:.1f} ms",
            f"{row['time_ratio']:.2f}",
            f"{row['peak_bytes'] / 1e6:.1f} MB",
            f"{(row['peak_bytes'] - plain['peak_bytes']) / 1e6:+.1f} MB",
            end_section=row["way"] == WAYS[-1],
        )
    return table


if __name__ == "__main__":
    main()
