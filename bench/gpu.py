"""What tracing costs on a GPU, and that it is right: real shapes, random weights, bfloat16.

    python bench/gpu.py [--json bench/gpu.json] [--only PART ...]

Needs torch with CUDA and Triton, and what the package needs. The shapes are those of
LLaDA-8B, Dream-7B and Llama-8B; the weights are drawn, since cost does not depend on them. Every
way of running is timed in turn, round after round, and the median counts; ratios are to the plain
forward of the same rounds, which goes through the same stock attention (cuDNN's on Hopper).
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_parts.cached import cached, cached_memory, cached_same
from gpu_parts.common import SHAPES, Row
from gpu_parts.decodings import decoding
from gpu_parts.forwards import forward, growth, long, profiled
from gpu_parts.identity import same
from gpu_parts.reads import reads
from gpu_parts.replays import memory, replayed, replays_same, whole
from gpu_parts.sums import exact, kernel

PARTS = ["LLaDA-8B", "kernel", "exact", "same", "decode", "Dream-7B", "Llama-8B", "long", "growth",
         "continue", "profile", "reads", "replay", "replay same", "memory", "whole",
         "cached", "cached blocks", "cached same", "cached memory"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--ways", nargs="+", help="of replayed and cached decodings; all by default"
    )
    parser.add_argument("--cases", nargs="+", help="of `cached same`; all by default")
    args = parser.parse_args()
    device = torch.cuda.get_device_name()
    import transformers
    import triton

    found: dict[str, Any] = {
        "device": device,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }
    print(device, "torch", torch.__version__)
    parts: dict[str, Callable[[], list[Row]]] = {
        "exact": exact,
        "kernel": kernel,
        "profile": profiled,
        **{
            name: lambda name=name: forward(name, args.sizes, args.rounds)  # type: ignore[misc]
            for name in SHAPES
        },
        "long": long,
        "same": same,
        "growth": growth,
        "decode": lambda: decoding("LLaDA-8B", 32, 2048, 8),
        "continue": lambda: decoding("Llama-8B", 32, 2048, 8),
        "reads": reads,
        "replay": lambda: replayed(rounds=args.rounds, chosen=args.ways),
        "replay same": replays_same,
        "memory": memory,
        "whole": lambda: whole(min(args.rounds, 2)),
        "cached": lambda: cached(args.rounds, kinds=("causal",), chosen=args.ways),
        "cached blocks": lambda: cached(min(args.rounds, 2), kinds=("blocks",)),
        "cached same": lambda: cached_same(args.cases),
        "cached memory": cached_memory,
    }
    for name in args.only:
        begun = time.perf_counter()
        print(f"== {name}", flush=True)
        found[name] = parts[name]()
        print(f"   {time.perf_counter() - begun:.0f} s", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
