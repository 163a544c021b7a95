"""What tracing costs: traced against plain against materialised attention, in one run.

One denoising forward of a bidirectional model at each length, interleaved so that a busy machine
disturbs all alike. Times are CPU time of all threads, best of the rounds; ratios are to the plain forward
of the same round, median and range of the middle half of the rounds, and that of the best times. Peak
memory is what a forward adds to what is held before it, from a child process each.

    python bench/overhead.py [--layers 12 --width 256 --heads 8] [--json FILE]
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import floatscope as fs
from floatscope.attention import Capture, Forward, Labels
from floatscope.models import attention_hook, tiny
from floatscope.statistics import STATISTICS

Run = Callable[[], object]
Way = Callable[[], AbstractContextManager[Run]]
WAYS = (
    *("plain", "traced: mass", "traced: all", "reduced: mass", "reduced: all"),
    *("eager", "eager + statistics"),
)


def ways_of(model: Any, size: int) -> dict[str, Way]:
    """One forward each way, on the same canvas: half prompt in four regions, half masks.

    A way is set up before it is timed, as it is before a decoding's first step.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (1, size), generator=generator)
    answer = min(64, size // 4)
    ids[:, -answer:] = model.mask_id
    visible = model.visibility(size, size, torch.zeros(1, dtype=torch.long))
    region = torch.arange(size)[None] * 4 // size + 2
    region[:, -answer:] = 0
    window = (size - answer, size)
    one_hot = (region[..., None] == torch.arange(6)).float()  # (1, s, 6)

    def forward() -> object:
        return model.predict(ids, *window, visible)

    @contextmanager
    def plain() -> Iterator[Run]:
        with attention_hook.enable(model.net):
            yield forward

    def traced(keep: set[str], groups: int) -> Way:
        group = region.clamp(max=2) if groups == 3 else torch.zeros_like(region)
        about = Forward(visible, Labels(group, groups, region, 6), window, cached=False)

        @contextmanager
        def way() -> Iterator[Run]:
            with Capture(model, keep, range(model.n_layers), range(model.n_heads)) as capture:

                def run() -> object:
                    with capture.forward(about) as captured:
                        forward()
                    if "rows" in keep:  # a step reveals a few positions: here two
                        captured.rows([torch.tensor([0, 1])])
                    return captured

                yield run

        return way

    def by_hand(a: torch.Tensor) -> object:
        groups = one_hot.mT @ a[0]  # (h, 6, k): column sums by region
        return groups, torch.special.entr(a).sum(-1), a @ one_hot

    def eager(reduce: Callable[[torch.Tensor], object] | None, at_once: bool) -> Way:
        """Attention materialised: kept and reduced afterwards, or each layer's before the next."""

        @contextmanager
        def way() -> Iterator[Run]:
            kept: list[object] = []

            def take(module: object, args: object, output: Any) -> object:
                assert reduce is not None
                kept.append(reduce(output[1]))
                return output[0], None

            @torch.inference_mode()
            def run() -> object:
                kept.clear()
                options = {"use_cache": False, "is_causal": False, "logits_to_keep": answer}
                found = model.net(ids, output_attentions=not at_once, **options)
                if at_once or reduce is None:
                    return kept if at_once else found.attentions
                return [reduce(a) for a in found.attentions]

            hooks = []
            model.net.set_attn_implementation("eager")
            if at_once:
                layers = model.net.model.layers
                hooks = [layer.self_attn.register_forward_hook(take) for layer in layers]
            try:
                yield run
            finally:
                for hook in hooks:
                    hook.remove()
                model.net.set_attn_implementation("sdpa")

        return way

    return {
        "plain": plain,
        "traced: mass": traced({"mass"}, 1),
        "traced: all": traced(set(STATISTICS.default), 3),
        "reduced: mass": eager(lambda a: a.sum(2), True),
        "reduced: all": eager(by_hand, True),
        "eager": eager(None, False),
        "eager + statistics": eager(by_hand, False),
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


def seconds(way: Way) -> float:
    with way() as run:
        start = time.process_time()
        run()
        return time.process_time() - start


def peak(args: argparse.Namespace, size: int, way: str) -> float:
    """Bytes that one forward adds at its peak, measured in a process of its own."""
    command = [sys.executable, __file__, "--child", way, "--sizes", str(size)]
    for name in ("layers", "width", "heads"):
        command += [f"--{name}", str(getattr(args, name))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = build(folder, args)
        with ways_of(model, 64)[args.child]() as run:
            run()  # libraries and small buffers are there before we look
        with ways_of(model, args.sizes[0])[args.child]() as run:
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
            before = high_water()
            kept = run()
            print(max(0, high_water() - before))  # pages are counted in lots: a few may be missing
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
            ways = ways_of(model, size)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(max(3, args.rounds * 512 // max(size, 512))):
                for name, one in ways.items():
                    times[name].append(seconds(one))
            for way in WAYS:
                pairs = zip(times[way], times["plain"], strict=True)
                low, middle, high = statistics.quantiles(
                    [one / plain for one, plain in pairs], n=4, method="inclusive"
                )
                rows.append(
                    {
                        "S": size,
                        "way": way,
                        "ms": min(times[way]) * 1e3,
                        "time_ratio": min(times[way]) / min(times["plain"]),
                        "median_ratio": middle,
                        "ratio_low": low,
                        "ratio_high": high,
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
    names = ("S", "way", "time", "× plain, best", "median (middle half)", "peak extra memory")
    for name in (*names, "over plain"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        plain = next(r for r in rows if r["S"] == row["S"] and r["way"] == "plain")
        table.add_row(
            str(row["S"]) if row["way"] == "plain" else "",
            row["way"],
            f"{row['ms']:.1f} ms",
            f"{row['time_ratio']:.2f}",
            f"{row['median_ratio']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})",
            f"{row['peak_bytes'] / 1e6:.1f} MB",
            f"{(row['peak_bytes'] - plain['peak_bytes']) / 1e6:+.1f} MB",
            end_section=row["way"] == WAYS[-1],
        )
    return table


if __name__ == "__main__":
    main()
