"""Models of real shapes with drawn weights, ways of running them, and the clock."""

import gc
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import shapes
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from floatscope.attention import Capture, Forward, Labels
from floatscope.models import Direction, Model, attention_hook
from floatscope.models.registry import family_by_name
from floatscope.statistics import STATISTICS

Row = dict[str, Any]
Run = Callable[[], object]
Way = Callable[[], AbstractContextManager[Run]]
GIB = 2**30
SHAPES = {name: shapes.SHAPES[name] for name in ("LLaDA-8B", "Dream-7B", "Llama-8B")}
WINDOW = 64  # positions being decided
KEEPS: dict[str, tuple[set[str], int]] = {
    "mass": ({"mass"}, 1),
    "groups": ({"mass", "groups"}, 3),
    "all": (set(STATISTICS.default), 3),  # all that are kept by default
    "all but rollout": (set(STATISTICS.default) - {"rollout"}, 3),
}


def build(name: str) -> Model:
    family = {"LLaDA-8B": "LLaDA", "Dream-7B": "Dream", "Llama-8B": "Llama"}[name]
    causal = family == "Llama"
    kind, network = (
        (Qwen2Config, Qwen2ForCausalLM) if family == "Dream" else (LlamaConfig, LlamaForCausalLM)
    )
    config = kind(
        **SHAPES[name], max_position_embeddings=65536, is_causal=causal, attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        net = network(config).eval()
        torch.set_default_dtype(torch.float32)
    direction = Direction.CAUSAL if causal else Direction.BIDIRECTIONAL
    mask = None if causal else 126336
    shift = 0 if family == "LLaDA" else 1
    return Model(
        f"{name} shape", net, None, family_by_name(family), direction, None, shift, mask, ()
    )


def forward_of(model: Model, batch: int, size: int, n_groups: int) -> Forward:
    """Six regions; the last positions are being decided, half of them masked."""
    visible = model.visibility(size, size, torch.zeros(batch, dtype=torch.long, device="cuda"))
    at = torch.arange(size, device="cuda")
    region = torch.where(at < size - WINDOW, at * 4 // size + 2, at % 2).expand(batch, -1)
    region = region.contiguous()
    group = region.clamp(max=2) if n_groups == 3 else torch.zeros_like(region)
    rows = (size - WINDOW - model.shift, size - model.shift)
    return Forward(visible, Labels(group, n_groups, region, 6), rows, cached=False)


def ways_of(
    model: Model, batch: int, size: int, keeps: Iterable[str], layers: Sequence[int] | None = None
) -> dict[str, Way]:
    ids = torch.randint(0, 120000, (batch, size), device="cuda")
    visible = forward_of(model, batch, size, 1).visible

    def predict() -> object:
        return model.predict(ids, size - WINDOW, size, visible)

    @contextmanager
    def plain() -> Iterator[Run]:
        with attention_hook.enable(model.net):
            yield predict

    def traced(keep: set[str], n_groups: int) -> Way:
        @contextmanager
        def way() -> Iterator[Run]:
            chosen = range(model.n_layers) if layers is None else layers
            with Capture(model, keep, chosen, range(model.n_heads)) as capture:

                def run() -> object:
                    # A new scene, as every step of a decoding has one.
                    with capture.forward(forward_of(model, batch, size, n_groups)) as captured:
                        predict()
                    return captured

                yield run

        return way

    return {"plain": plain, **{name: traced(*KEEPS[name]) for name in keeps}}


def alone(run: Run) -> Way:
    return lambda: nullcontext(run)


def in_turn(ways: dict[str, Way], rounds: int, repeats: int = 1) -> dict[str, float]:
    """Median milliseconds of each way."""
    times = in_rounds(ways, rounds, repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def over_plain(times: dict[str, list[float]], way: str) -> Row:
    """A way over the plain one: of the medians, and within the rounds at least and at most."""
    each = [mine / plain for mine, plain in zip(times[way], times["plain"], strict=True)]
    middle = statistics.median(times[way]) / statistics.median(times["plain"])
    return {way: middle, f"{way}_range": [min(each), max(each)]}


def in_rounds(ways: dict[str, Way], rounds: int, repeats: int = 1) -> dict[str, list[float]]:
    """Milliseconds of each way, round by round. The ways take turns, and each round begins with another:
    a GPU's clock follows the work before."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for turn in range(rounds + 1):  # the first round warms up and compiles
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            way = ways[name]
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with way() as run:
                if repeats > 1:  # short runs: the device waits until all are queued
                    torch.cuda._sleep(40_000_000)
                start.record()
                for _ in range(repeats):
                    run()
                stop.record()
                torch.cuda.synchronize()
            if turn:
                times[name].append(start.elapsed_time(stop) / repeats)
    return times


def peak(way: Way) -> float:
    """GiB, weights included."""
    gc.collect()
    torch.cuda.empty_cache()
    with way() as run:
        torch.cuda.reset_peak_memory_stats()
        kept = run()
        torch.cuda.synchronize()
        del kept
    return torch.cuda.max_memory_allocated() / GIB
