"""The least that mass can cost on a CPU while stock attention's output stays as it is to the last bit.

Attention's kernel gives no weights away, so mass needs a product q·kᵀ of its own, an exponential of every
score and their sums over rows. They are timed here with torch's operations, in tiles that stay in cache,
beside the plain forward of the same round: one thread, CPU time, medians and the middle half of the rounds.

    python bench/bound.py [--layers 12 --width 256 --heads 8] [--json FILE]
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from overhead import build
from rich.progress import track

from floatscope.models import attention_hook

_TILE = 1 << 20  # bytes, as the traced path has them


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def parts(heads: int, size: int, dim: int) -> dict[str, Callable[[], None]]:
    """One layer's product alone, and with exponentials and column sums."""
    query, key = (torch.randn(heads, size, dim) / dim**0.5 for _ in range(2))
    rows = max(1, min(size, _TILE // (size * 4)))
    few = max(1, min(heads, _TILE // (rows * size * 4)))  # one product of several heads, if short
    tile, one = torch.empty(few, rows, size), torch.ones(few, 1, size)
    column = torch.zeros(heads, 1, size)

    def tiles(whole: bool) -> None:
        for h in range(0, heads, few):
            of = slice(h, min(heads, h + few))
            n = of.stop - h
            for start in range(0, size, rows):
                stop = min(size, start + rows)
                weight = tile[:n, : stop - start]
                torch.bmm(query[of, start:stop], key[of].mT, out=weight)
                if whole:
                    column[of].baddbmm_(one[:n, :, start:stop], weight.exp_())

    return {"product": lambda: tiles(False), "sums": lambda: tiles(True)}


@torch.inference_mode()
def measured(args: argparse.Namespace, folder: str) -> list[dict[str, object]]:
    model = build(folder, args)
    rows: list[dict[str, object]] = []
    for size in args.sizes:
        ids = torch.randint(0, 256, (1, size))
        visible = model.visibility(size, size, torch.zeros(1, dtype=torch.long))
        answer = min(64, size // 4)
        ways = parts(args.heads, size, args.width // args.heads)
        ways["plain"] = lambda ids=ids, a=answer, v=visible: model.predict(  # type: ignore[misc]
            ids, ids.shape[1] - a, ids.shape[1], v
        )
        taken: dict[str, list[float]] = {name: [] for name in ways}
        with attention_hook.enable(model.net):
            for _ in track(range(args.rounds + 2), f"{size} tokens", transient=True):
                for name, way in ways.items():
                    if name != "plain":
                        way()  # at its best: its code and memory are in the caches
                    taken[name].append(seconds(way))
        taken = {name: some[2:] for name, some in taken.items()}  # the first two warm it up
        layer = [plain / args.layers for plain in taken["plain"]]
        row: dict[str, object] = {"S": size, "layer_ms": 1e3 * statistics.median(layer)}
        for name in ("product", "sums"):
            ratios = sorted(1 + a / b for a, b in zip(taken[name], layer, strict=True))
            low, middle, high = statistics.quantiles(ratios, n=4)
            row |= {f"{name}_ms": 1e3 * statistics.median(taken[name]), name: middle}
            row[f"{name}_range"] = [low, high]
        rows.append(row)
        print(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(args, folder)
    if args.json:
        about = {
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
        }
        asked = {"layers": args.layers, "width": args.width, "heads": args.heads}
        args.json.write_text(json.dumps({**about, **asked, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
