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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from floatscope import models
from floatscope.attention import Capture, Forward, Labels
from floatscope.decode.loop import decode
from floatscope.decode.samplers.confidence import Confidence
from floatscope.decode.state import State, Watcher
from floatscope.models import tiny
from floatscope.recording.cache import RunningSums
from floatscope.sequences.prompt import Encoded

KEEP = {"mass", "groups", "entropy", "flow", "rollout", "qk"}


class Sums(Watcher):
    """Of every step: the layers' sums over all rows so far, on the host."""

    def __init__(self, model: models.Model) -> None:
        everything = range(model.n_layers), range(model.n_heads)
        self.capture, self.running = Capture(model, KEEP, *everything), RunningSums()
        self.steps: list[list[dict[str, torch.Tensor]]] = []

    @contextmanager
    def forward(self, state: State) -> Iterator[None]:
        real, masked = state.visible.key_is_real, state.masked
        column = torch.arange(real.shape[1], device=real.device)
        region = torch.where(column < state.prompt_end, 2, (~masked).long()).masked_fill(~real, -1)
        labels = Labels(region[:, state.visible.rows], 3, region, 3)
        forward = Forward(
            *(state.visible, labels, state.predicting, state.cached),
            prompts=state.active,
            settled=state.settled,
        )
        with self.capture.forward(forward) as captured:
            yield
        if state.cached:
            captured = self.running.add(captured, state.active)
        there = real[:, None].cpu()
        step = []
        for one in captured.layers.values():
            assert one.column_sum is not None
            assert one.entropy is not None
            assert one.columns is not None
            assert one.flow_sum is not None
            assert one.rollout_sum is not None
            step.append(
                {
                    "column_sum": one.column_sum.cpu() * there[:, None],
                    "entropy": one.entropy.cpu().nan_to_num() * there,
                    "flow": one.flow_sum.cpu(),
                    "rollout": one.rollout_sum.cpu(),
                    "score": one.columns.score.cpu() * there,
                }
            )
        self.steps.append(step)


def run(
    model: models.Model, args: argparse.Namespace, cache: str | None
) -> tuple[Any, Sums, float]:
    sizes = (57, 96, 130)
    prompts = [Encoded(tuple(i % 251 for i in range(n)), ("prompt",) * n) for n in sizes]
    sampler = Confidence(length=args.tokens, steps=args.tokens // 4, stop_at_eos=False)
    watch, start = Sums(model), time.perf_counter()
    with watch.capture:
        done = decode(model, prompts, sampler, watch, cache=cache)
    return done, watch, time.perf_counter() - start


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
            plain, one, slow = run(model, args, None)
            cached, two, fast = run(model, args, "exact")
            same = all((a.canvas == b.canvas).all() for a, b in zip(plain, cached, strict=True))
            off: dict[str, float] = {}
            for a, b in zip(one.steps, two.steps, strict=True):
                for x, y in zip(a, b, strict=True):
                    for name in x:
                        off[name] = max(off.get(name, 0.0), float((x[name] - y[name]).abs().max()))
            print(f"{grid}: tokens {'the same' if same else 'DIFFER'}; {slow:.2f} s → {fast:.2f} s")
            print("   ", ", ".join(f"{name} {value:.1e}" for name, value in off.items()))
            worst = max(worst, off["column_sum"] if same else 1.0)
    if worst > args.tolerance:
        sys.exit(f"column sums are off by {worst:.1e}")


if __name__ == "__main__":
    main()
