"""Examples of a study traced one at a time and together, as its worker does it: time, and that both agree.

    python bench/batching.py --device cuda --json bench/batching.json
    python bench/batching.py --only pair --batch 4          # on a CPU, where `auto` is one

Random weights in the shapes of the embedded pair, its twin and LLaDA-8B; prompts of unequal length in shards
of eight. The ways take turns after a round that is not timed. Agreement: the share of examples with the same
tokens, and of those the largest difference of a measure's values (shares of attention).
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import SHAPES
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.models import graphs
from floatscope.sequences.prompt import Encoded
from floatscope.studies.batching import Batching

# Which shape, whether causal, its type, examples, lengths of prompts, tokens and steps.
PARTS: dict[str, tuple[str, bool, str, int, tuple[int, int], int, int]] = {
    "pair": ("pair", False, "float32", 24, (220, 330), 16, 16),
    "pair, causal": ("pair", True, "float32", 8, (220, 330), 16, 16),
    "twin": ("twin", False, "float32", 16, (220, 330), 16, 16),
    "LLaDA-8B": ("LLaDA-8B", False, "bfloat16", 8, (900, 1000), 32, 16),
}
SHARD = 8
SHORT = "out of memory"


def build(shape: str, causal: bool, dtype: str, device: str) -> fs.Model:
    sizes = SHAPES[shape]
    config = LlamaConfig(
        **sizes, max_position_embeddings=4096, is_causal=causal, attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(getattr(torch, dtype))
        net = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    if causal:
        return fs.load(net, family="Llama")
    mask = sizes["vocab_size"] - 1
    return fs.load(net, family="LLaDA", direction="bidirectional", shift=0, mask_id=mask)


def prompts_of(n: int, lengths: tuple[int, int], vocabulary: int) -> list[Encoded]:
    draw, found = np.random.default_rng(0), []
    for _ in range(n):
        size = int(draw.integers(*lengths))
        names = ("question", "passage 1", "passage 2", "passage 3")
        ids = draw.integers(5, vocabulary - 5, size).tolist()
        found.append(Encoded(tuple(ids), tuple(names[i * 4 // size] for i in range(size))))
    return found


def once(
    model: fs.Model, prompts: list[Encoded], sampler: Any, batch: int | None
) -> tuple[float, list[Any], list[int]]:
    """Seconds, each example's tokens and values, and the batches."""
    measure = fs.measures.Absorption()
    results: list[Any] = []
    batching = Batching.for_model(model, batch)

    def trace(some: list[Encoded]) -> list[fs.Trace]:
        return model.trace(some, sampler, batch_size=len(some))

    start = time.perf_counter()
    for first in range(0, len(prompts), SHARD):
        shard = prompts[first : first + SHARD]
        for _, traces in batching.batches(shard, sampler.length, trace):
            results += [(one.canvas.values[-1].tolist(), measure.example(one)) for one in traces]
    return time.perf_counter() - start, results, batching.sizes


def agreement(alone: list[Any], together: list[Any]) -> dict[str, Any]:
    same = [a for a, b in zip(alone, together, strict=True) if a[0] == b[0]]
    worst = 0.0
    for (ids, one), (others, other) in zip(alone, together, strict=True):
        if ids == others:
            for name in one.data_vars:
                gap = np.abs(np.asarray(one[name]) - np.asarray(other[name]))
                worst = max(worst, float(np.nanmax(gap, initial=0.0)))
    return {"same_tokens": len(same) / len(alone), "largest_difference": worst}


def compared(name: str, device: str, batch: int | None, rounds: int) -> dict[str, Any]:
    shape, causal, dtype, n, lengths, tokens, steps = PARTS[name]
    model = build(shape, causal, dtype, device)
    prompts = prompts_of(n, lengths, SHAPES[shape]["vocab_size"])
    sampler: Any = fs.Confidence(length=tokens, steps=steps, stop_at_eos=False)
    if causal:
        sampler = fs.Autoregressive(length=tokens, stop_at_eos=False)
    ways: dict[str, int | None] = {"one": 1, "together": batch}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    results: dict[str, Any] = {}
    for turn in range(rounds + 1):
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            seconds, found, sizes = once(model, prompts, sampler, ways[way])
            results[way] = found, sizes
            if turn:
                taken[way].append(seconds / n)
        print(name, turn, {way: some[-1:] for way, some in taken.items()}, flush=True)
    ratios = [a / b for a, b in zip(taken["one"], taken["together"], strict=True)]
    return {
        "part": name, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "dtype": dtype, "examples": n, "prompt": list(lengths), "tokens": tokens, "steps": steps,
        "one_s": taken["one"], "together_s": taken["together"],
        "times_as_fast": statistics.median(ratios), "range": [min(ratios), max(ratios)],
        "batches": results["together"][1],
        "recorded": len(graphs.store_of(model.net).recorded),
        **agreement(results["one"][0], results["together"][0]),
    }  # fmt: skip


def short_of_memory() -> dict[str, Any]:
    """Torch may have half as much again as an example and its recording take, and is not asked for that."""
    model = build("twin", False, "float32", "cuda")
    prompts = prompts_of(SHARD, (1500, 2000), SHAPES["twin"]["vocab_size"])
    sampler = fs.Confidence(length=16, steps=4, stop_at_eos=False)
    _, alone, _ = once(model, prompts, sampler, 1)
    first = Batching.for_model(model, None)

    def trace(some: list[Encoded]) -> list[fs.Trace]:
        return model.trace(some, sampler, batch_size=len(some))

    list(first.batches(prompts[:1], sampler.length, trace))
    assert first._per_position is not None
    assert first.memory is not None
    first.memory.release()
    room = torch.cuda.memory_reserved() + 1.5 * 2016 * first._per_position[0]
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info()[1])
    try:
        _, together, sizes = once(model, prompts, sampler, SHARD)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    found = {"part": SHORT, "examples": len(prompts), "batches": sizes}
    found["bytes_a_position"] = first._per_position
    return found | agreement(alone, together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", nargs="+", choices=[*PARTS, SHORT], default=list(PARTS))
    parser.add_argument("--batch", type=int, help="default: as many as fit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.only:
        if name == SHORT:
            rows.append(short_of_memory())
        else:
            rows.append(compared(name, args.device, args.batch, args.rounds))
        print(json.dumps(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
