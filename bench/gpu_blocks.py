"""Decoding in blocks on a GPU: the exact cache against none, through the kernels.

    python bench/gpu_blocks.py [--device cuda] [--tokens 128] [--block 32] [--layers 4] [--dtype float32]

A block-causal model with random weights decodes prompts of unequal length with the cache and without.
Compared are the tokens and, at every step and layer, what all rows so far gave each key (by query group),
row entropies, region sums, the rollout and the query-key sums. Needs torch, transformers and, for the
kernels, Triton; no xarray. Exits with 1 where a column sum is off by more than `--tolerance`.
"""

import argparse
import sys
import tempfile
import time

from floatscope import models
from floatscope.decode.loop import decode
from floatscope.decode.samplers.confidence import Confidence
from floatscope.models import tiny
from floatscope.recording.options import TraceOptions
from floatscope.recording.recorder import Recorder
from floatscope.sequences.prompt import Encoded
from floatscope.trace import Trace

KEEP = {"mass", "groups", "entropy", "flow", "rollout", "qk"}


def run(
    model: models.Model, args: argparse.Namespace, cache: str | None
) -> tuple[list[Trace], float]:
    sizes = (57, 96, 130)
    prompts = [Encoded(tuple(i % 251 for i in range(n)), ("prompt",) * n) for n in sizes]
    sampler = Confidence(length=args.tokens, steps=args.tokens // 4, stop_at_eos=False)
    recorder, start = (
        Recorder(model, prompts, sampler, TraceOptions(keep=KEEP)),
        time.perf_counter(),
    )
    with recorder:
        decodings = decode(model, prompts, sampler, recorder, cache=cache)
    return recorder.traces(decodings), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    for name, value in {"tokens": 128, "block": 32, "layers": 4, "width": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = tiny.Shape(args.layers, args.width, 8, 2, 4 * args.width, context=1024, spread=0.05)
        tiny.write("Qwen3", folder, shape)
        worst = 0.0
        for grid in ("start", "padded"):
            model = models.load(
                *(folder,),
                into=models.Model,
                device=args.device,
                dtype=args.dtype,
                direction="block-causal",
                block=args.block,
                grid=grid,
                mask_id=tiny.MASK,
                shift=0,
            )
            run(model, argparse.Namespace(**{**vars(args), "tokens": 32}), None)  # compiles
            plain, slow = run(model, args, None)
            cached, fast = run(model, args, "exact")
            pairs = list(zip(plain, cached, strict=True))
            same = all(bool((a.canvas == b.canvas).all()) for a, b in pairs)
            off = {
                name: max(float(abs(a.data[name] - b.data[name]).max()) for a, b in pairs)
                for name in ("column_sum", "entropy", "flow", "rollout", "score")
            }
            print(f"{grid}: tokens {'the same' if same else 'DIFFER'}; {slow:.2f} s → {fast:.2f} s")
            print("   ", ", ".join(f"{name} {value:.1e}" for name, value in off.items()))
            worst = max(worst, off["column_sum"] if same else 1.0)
    if worst > args.tolerance:
        sys.exit(f"column sums are off by {worst:.1e}")


if __name__ == "__main__":
    main()
