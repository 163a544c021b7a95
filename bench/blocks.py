"""What decoding in blocks costs, with the exact cache and without, plain and traced.

    python bench/blocks.py [--tokens 512] [--block 32] [--steps 128] [--layers 12 --width 256] [--json FILE]

A model with random weights continues a prompt of 100 tokens in blocks, one way after the other, round by
round. Times are CPU seconds of one thread, the least of `--rounds`. Over plain: each way's time over the
plain one of the same round and cache, median and range of the middle half of the rounds. Rows: what all
forwards together computed of each layer. K/V kept: the most bytes of keys and values kept between steps.
"""

import argparse
import hashlib
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

CACHES = (None, "exact")
KEPT: dict[str, list[str] | None] = {"plain": [], "mass": ["mass"], "all": None}
PROMPT = "x" * 100


def measured(args: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """Every way in turn, round by round: a busy machine disturbs all alike."""
    import torch

    import floatscope as fs
    from floatscope.decode.cached_forwards import CachedForwards
    from floatscope.models import attention_hook, tiny

    torch.set_num_threads(1)
    blocks = {"direction": "block-causal", "block": args.block, "mask_id": tiny.MASK, "shift": 0}
    model = fs.load(folder, check=False, **blocks)
    rows = held = 0

    def count(call: attention_hook.Call, proceed: attention_hook.Proceed) -> torch.Tensor:
        nonlocal rows
        rows += call.query.shape[2] if call.layer == 0 else 0
        return proceed(call)

    own = CachedForwards.keep

    def keep(self: Any, columns: int) -> None:
        nonlocal held
        own(self, columns)
        width = sum(layer.keys.shape[1] * layer.keys.shape[3] for layer in self.kv.layers)
        held = max(held, 2 * columns * width * 4)

    CachedForwards.keep = keep  # type: ignore[method-assign]

    def run(cache: str | None, kept: str, tokens: int, steps: int) -> Any:
        sampler = fs.Confidence(length=tokens, steps=steps, stop_at_eos=False)
        if kept == "plain":
            return model.generate(PROMPT, sampler, cache=cache)
        return model.trace(PROMPT, sampler, cache=cache, keep=KEPT[kept])

    ways = [(cache, kept) for cache in CACHES for kept in KEPT]
    found: dict[tuple[str | None, str], dict[str, Any]] = {}
    times: dict[tuple[str | None, str], list[float]] = {way: [] for way in ways}
    for way in ways:
        run(*way, 2 * args.block, 4)
    for _ in track(range(args.rounds), "decoding", console=Console(stderr=True)):
        for way in ways:
            rows = held = 0
            start = time.process_time()
            with attention_hook.attach(model.net, count):
                done = run(*way, args.tokens, args.steps)
            took = time.process_time() - start
            last = done.canvas[-1] if way[1] == "plain" else done.canvas.values[-1]
            times[way].append(took)
            found[way] = {
                "cpu_s": round(min(times[way]), 3),
                "rows": rows,
                "cache_bytes": held,
                "trace_bytes": 0 if way[1] == "plain" else done.nbytes,
                "tokens": hashlib.blake2b(
                    last.astype("int64").tobytes(), digest_size=4
                ).hexdigest(),
            }
            del done
    for cache, kept in ways:
        pairs = zip(times[cache, kept], times[cache, "plain"], strict=True)
        found[cache, kept] |= over([one / plain for one, plain in pairs])
    return [{"cache": cache, "kept": kept, **found[cache, kept]} for cache, kept in ways]


def over(ratios: list[float]) -> dict[str, float]:
    """Median and quartiles of the rounds' ratios; of one round that one."""
    low, middle, high = statistics.quantiles(ratios * 2, n=4, method="inclusive")
    return {"ratio": round(middle, 3), "ratio_low": round(low, 3), "ratio_high": round(high, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"tokens": 512, "block": 32, "steps": 128, "layers": 12, "width": 256, "heads": 8}
    for name, value in {**sizes, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from floatscope.models import tiny

    with tempfile.TemporaryDirectory() as folder:
        shape = tiny.Shape(
            *(args.layers, args.width, args.heads, args.heads, 4 * args.width),
            context=len(PROMPT) + args.tokens + 1,
            spread=0.05,
        )
        tiny.write("Qwen3", folder, shape)
        found = measured(args, folder)
    assert len({row["tokens"] for row in found}) == 1, "every way decodes the same tokens"
    shown = Table(title=f"{args.tokens} tokens in blocks of {args.block}, {args.steps} steps")
    for name in ("cache", "kept", "CPU", "over plain", "rows", "K/V kept", "trace"):
        shown.add_column(name, justify="right")
    for row in found:
        size = [f"{row[f'{name}_bytes'] / 1e6:.1f} MB" for name in ("cache", "trace")]
        middle, *ends = (row[name] for name in ("ratio", "ratio_low", "ratio_high"))
        ratio = f"{middle:.2f} ({ends[0]:.2f}–{ends[1]:.2f})"
        way = (str(row["cache"]), row["kept"], f"{row['cpu_s']:.2f} s", ratio, f"{row['rows']:,}")
        shown.add_row(*way, *size)
    Console().print(shown)
    if args.json:
        asked = {name: getattr(args, name) for name in (*sizes, "rounds")}
        here = {"machine": platform.machine(), "python": platform.python_version()}
        args.json.write_text(json.dumps({"asked": asked, **here, "ways": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
