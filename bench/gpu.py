"""What tracing costs on a GPU, and that it is right: real shapes, random weights, bfloat16.

    python bench/gpu.py [--json bench/gpu.json] [--only PART ...]

Needs torch with CUDA and Triton, transformers and jaxtyping alone. The shapes are those of
LLaDA-8B, Dream-7B and Llama-8B; the weights are drawn, since cost does not depend on them. Every
way of running is timed in turn, round after round, and the median counts; ratios are to the plain
forward of the same rounds, which goes through the same stock attention (cuDNN's on Hopper).
"""

import argparse
import copy
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from floatscope.attention import (
    STATISTICS,
    Capture,
    Labels,
    Scene,
    Seen,
    View,
    blocked,
    fused,
    reference,
)
from floatscope.attention.overhear import Overhear
from floatscope.models import Direction, Model, seam
from floatscope.models.registry import family_by_name

Run = Callable[[], object]
Way = Callable[[], AbstractContextManager[Run]]
GIB = 2**30
PARTS = ["LLaDA-8B", "kernel", "exact", "same", "decode", "Dream-7B", "Llama-8B", "long", "growth",
         "continue", "profile"]  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "LLaDA-8B": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 12288, "vocab_size": 126464,
    },
    "Dream-7B": {
        "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
    },
    "Llama-8B": {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    },
}  # fmt: skip
WINDOW = 64  # positions being decided
KEEPS: dict[str, tuple[set[str], int]] = {
    "mass": ({"mass"}, 1),
    "groups": ({"mass", "groups"}, 3),
    "all": (set(STATISTICS), 3),
    "all but rollout": (set(STATISTICS) - {"rollout"}, 3),
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


def scene_of(model: Model, batch: int, size: int, n_groups: int) -> Scene:
    """Six regions; the last positions are being decided, half of them masked."""
    visible = model.visibility(size, size, torch.zeros(batch, dtype=torch.long, device="cuda"))
    at = torch.arange(size, device="cuda")
    region = torch.where(at < size - WINDOW, at * 4 // size + 2, at % 2).expand(batch, -1)
    region = region.contiguous()
    group = region.clamp(max=2) if n_groups == 3 else torch.zeros_like(region)
    rows = (size - WINDOW - model.shift, size - model.shift)
    return Scene(visible, Labels(group, n_groups, region, 6), rows, cached=False)


def ways_of(
    model: Model, batch: int, size: int, keeps: Iterable[str], layers: Sequence[int] | None = None
) -> dict[str, Way]:
    ids = torch.randint(0, 120000, (batch, size), device="cuda")
    visible = scene_of(model, batch, size, 1).visible

    def predict() -> object:
        return model.predict(ids, size - WINDOW, size, visible)

    @contextmanager
    def plain() -> Iterator[Run]:
        with seam.engaged(model.net):
            yield predict

    def traced(keep: set[str], n_groups: int) -> Way:
        @contextmanager
        def way() -> Iterator[Run]:
            chosen = range(model.n_layers) if layers is None else layers
            with Capture(model, keep, chosen, range(model.n_heads)) as capture:

                def run() -> object:
                    # A new scene, as every step of a decoding has one.
                    with capture.forward(scene_of(model, batch, size, n_groups)) as seen:
                        predict()
                    return seen

                yield run

        return way

    return {"plain": plain, **{name: traced(*KEEPS[name]) for name in keeps}}


def alone(run: Run) -> Way:
    return lambda: nullcontext(run)


def in_turn(ways: dict[str, Way], rounds: int, repeats: int = 1) -> dict[str, float]:
    """Median milliseconds of each way. The ways take turns, and each round begins with another:
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
    return {name: statistics.median(values) for name, values in times.items()}


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


def forward(name: str, sizes: Iterable[int], rounds: int) -> list[dict[str, Any]]:
    rows, model = [], build(name)
    for batch, size in [(8, 1024), *((1, size) for size in sizes)]:
        ways = ways_of(model, batch, size, KEEPS)
        times = in_turn(ways, rounds)
        row: dict[str, Any] = {"model": name, "batch": batch, "S": size}
        row["plain_ms"] = times["plain"]
        row["plain_GiB"] = peak(ways["plain"])
        for way in KEEPS:
            row[way] = times[way] / times["plain"]
            row[f"{way}_memory"] = peak(ways[way]) / row["plain_GiB"]
        row |= eager(model, batch, size, times["plain"])
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def eager(model: Model, batch: int, size: int, plain_ms: float) -> dict[str, Any]:
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


def random_view(size: int, heads: int, kv: int, dtype: torch.dtype, **options: Any) -> View:
    """q, k and the log-sum-exp of one layer, with attention as sharp as a trained model's."""
    direction: Direction = options.get("direction", Direction.BIDIRECTIONAL)
    block = 32 if direction is Direction.BLOCK_CAUSAL else None
    batch = 2
    padding = torch.tensor([0, options.get("padding", 0)], device="cuda")
    query = torch.randn(batch, size, heads, 128, device="cuda", dtype=dtype).transpose(1, 2) * 2
    key = torch.randn(batch, size, kv, 128, device="cuda", dtype=dtype).transpose(1, 2)
    model_like = Direction(direction)
    from floatscope.models import Visibility

    visible = Visibility(model_like, block, padding, size, size)
    region = torch.randint(0, 6, (batch, size), device="cuda")
    region = region.sort(1).values.masked_fill(~visible.key_is_real, -1)
    mask, causal = visible.mask, visible.is_causal and visible.mask is None
    if options.get("edited"):
        drawn = torch.rand(batch, heads, size, size, device="cuda") < 0.5
        mask = visible.matrix[:, None] & (drawn | torch.eye(size, device="cuda").bool())
        causal = False
    wide = key.repeat_interleave(heads // kv, dim=1)
    with Overhear() as ear, torch.inference_mode():
        torch.nn.functional.scaled_dot_product_attention(
            query, wide, wide, attn_mask=mask, is_causal=causal
        )
    labels = Labels(region.clamp(max=2), 3, region, 6)
    state = torch.rand(batch, size, 6, device="cuda")
    state = state * (region >= 0)[..., None]
    lse = ear.lse(query)
    assert lse is not None, "attention kept no log-sum-exp"
    return View(query, key, 128**-0.5, mask, causal, visible, labels, lse, state)


def exact() -> list[dict[str, Any]]:
    """Largest error of sampled heads against float64, relative to each array's largest value."""
    cases: list[tuple[str, tuple[int, int, int], dict[str, Any]]] = [
        ("full", (4096, 8, 8), {}),
        ("full, odd size", (1001, 8, 8), {}),
        ("grouped heads", (2048, 28, 4), {}),
        ("padding", (2048, 8, 8), {"padding": 500}),
        ("causal", (2048, 8, 2), {"direction": Direction.CAUSAL}),
        ("causal, padding", (1500, 8, 2), {"direction": Direction.CAUSAL, "padding": 77}),
        ("block-causal", (2048, 8, 2), {"direction": Direction.BLOCK_CAUSAL}),
        ("edited mask a head", (1024, 8, 8), {"edited": True}),
    ]
    rows = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for name, shape, options in cases:
            view = random_view(*shape, dtype=dtype, **options)
            heads = [1, shape[1] - 1]
            fast = fused.sums(view)
            own = [h // (shape[1] // shape[2]) for h in heads]
            sampled = replace(
                view,
                query=view.query[:, heads],
                key=view.key[:, own],
                mask=view.mask
                if view.mask is None or view.mask.shape[1] == 1
                else view.mask[:, heads],
            )
            slow = reference.sums(sampled)
            counted = view.labels.counted[..., 0]
            row: dict[str, Any] = {"case": name, "dtype": str(dtype)[6:], "S": shape[0]}
            pairs = {
                "column_sum": (fast.column_sum[:, :, heads], slow.column_sum),
                "entropy": (fast.entropy[:, heads] * counted, slow.entropy * counted),  # type: ignore[index,operator]
                "region_sum": (
                    fast.region_sum[:, heads] * counted[..., None],  # type: ignore[index]
                    slow.region_sum * counted[..., None],  # type: ignore[operator]
                ),
            }
            for what, (a, b) in pairs.items():
                row[what] = float((a.double() - b).abs().max() / b.abs().max())
            assert fast.rolled is not None
            whole = blocked.sums(view, entropy=False, regions=False).rolled
            assert whole is not None
            error = (fast.rolled - whole).abs() * counted[:, 0, :, None]
            row["rolled"] = float(error.max() / whole.abs().max())
            rows.append(row)
            print(json.dumps(row), flush=True)
            del view, fast, slow, whole
            torch.cuda.empty_cache()
    return rows


def kernel() -> list[dict[str, Any]]:
    """The column sums alone, a layer of 32 heads, against flash-colreduce."""
    rows = []
    for size in (1024, 4096, 8192, 16384):
        view = random_view(size, 32, 32, torch.bfloat16)
        one = torch.zeros_like(view.labels.group[:1])
        view = replace(
            view, query=view.query[:1], key=view.key[:1], lse=view.lse[:1], state=None,  # type: ignore[index]
            visible=replace(view.visible, padding=view.visible.padding[:1]),
            labels=Labels(one, 1, one, 1),
        )  # fmt: skip
        runs: dict[str, Run] = {
            "ours": lambda view=view: fused.sums(view, entropy=False, regions=False),  # type: ignore[misc]
            "blocked": lambda view=view: blocked.sums(view, entropy=False, regions=False),  # type: ignore[misc]
        }
        try:
            from flash_colreduce import flash_colreduce

            query, key = view.query.contiguous(), view.key.contiguous()
            runs["flash-colreduce"] = lambda q=query, k=key: flash_colreduce(q, k, reduction="sum")  # type: ignore[misc]
        except ImportError:
            print("flash-colreduce is not installed")
        times = in_turn({name: alone(run) for name, run in runs.items()}, 5, repeats=8)
        row = {"S": size, **{f"{name}_ms": ms for name, ms in times.items()}}
        row["tflops"] = 2 * size**2 * 128 * 32 / times["ours"] / 1e9
        if "flash-colreduce" in times:
            row["times_as_fast"] = times["flash-colreduce"] / times["ours"]
        rows.append(row)
        print(json.dumps(row), flush=True)
        del view
    return rows


def long() -> list[dict[str, Any]]:
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


def same() -> list[dict[str, Any]]:
    """Logits with and without tracing, bit for bit; and the attention call's own output."""
    rows: list[dict[str, Any]] = [same_attention()]
    print(json.dumps(rows[0]), flush=True)
    for name in SHAPES:
        model = build(name)
        for batch, size in ((1, 4096), (4, 1000)):
            ids = torch.randint(0, 120000, (batch, size), device="cuda")
            padding = torch.tensor([0, *[100] * (batch - 1)], device="cuda")
            visible = model.visibility(size, size, padding)
            region = torch.arange(size, device="cuda") * 6 // size
            region = region.expand(batch, -1).masked_fill(~visible.key_is_real, -1)
            window = (size - WINDOW - model.shift, size - model.shift)
            scene = Scene(visible, Labels(region.clamp(max=2), 3, region, 6), window, cached=False)
            with seam.engaged(model.net):
                plain = model.predict(ids, size - WINDOW, size, visible)
            everything = range(model.n_layers), range(model.n_heads)
            capture = Capture(model, set(STATISTICS), *everything)
            with capture, capture.forward(scene) as seen:
                traced = model.predict(ids, size - WINDOW, size, visible)
            of_rows = [bool(one.candidates is not None) for one in seen.values()]
            row: dict[str, Any] = {"model": name, "batch": batch, "S": size}
            row |= {"padding": batch > 1}
            row |= {"same_logits": bool(torch.equal(plain, traced)), "fused": all(of_rows)}
            rows.append(row)
            print(json.dumps(row), flush=True)
        if not model.is_diffusion:
            rows.append(same_step(model))
            print(json.dumps(rows[-1]), flush=True)
        del model, plain, traced, seen, capture
        gc.collect()
        torch.cuda.empty_cache()
    return rows


@torch.inference_mode()
def same_step(model: Model) -> dict[str, Any]:
    """One token after 1,000 with a KV cache: logits plain, plain again, and traced."""
    ids = torch.randint(0, 120000, (4, 1001), device="cuda")
    nothing = torch.zeros(4, dtype=torch.long, device="cuda")
    last = torch.tensor([0], device="cuda")
    region = (torch.arange(1001, device="cuda") * 6 // 1001).expand(4, -1)
    visible = model.visibility(1, 1001, nothing)
    group = region[:, -1:].clamp(max=2)
    scene = Scene(visible, Labels(group, 3, region, 6), (0, 1), cached=True)
    cache = DynamicCache(config=model.net.config)
    with seam.engaged(model.net):
        model.forward(ids[:, :-1], last, model.visibility(1000, 1000, nothing), cache)
        plain, again = (
            model.forward(ids[:, -1:], last, visible, copy.deepcopy(cache)) for _ in range(2)
        )
    everything = range(model.n_layers), range(model.n_heads)

    def trace() -> tuple[torch.Tensor, dict[int, Seen]]:
        capture = Capture(model, set(STATISTICS), *everything)
        states = {n: torch.zeros(4, 1000, 6, device="cuda") for n in range(model.n_layers)}
        capture._states = states
        with capture, capture.forward(scene) as seen:
            logits = model.forward(ids[:, -1:], last, visible, copy.deepcopy(cache))
        return logits, seen

    traced, seen = trace()
    with patch.object(fused, "wanted", return_value=False):
        _, slow = trace()
    errors = {}
    for name in ("column_sum", "entropy", "flow_sum"):
        one, other = (torch.stack([getattr(s, name) for s in x.values()]) for x in (seen, slow))
        errors[name] = float((one - other).abs().max() / other.abs().max())
    return {
        "model": model.name,
        "batch": 4,
        "S": 1001,
        "cached": True,
        "same_logits": bool(torch.equal(plain, traced)),
        "plain_repeats_itself": bool(torch.equal(plain, again)),
        "fused": all(one.candidates is not None for one in seen.values()),
        "against_blocked": errors,
    }


def same_attention() -> dict[str, Any]:
    """Attention's own output with and without listening, bit for bit, over many shapes."""
    tried, differ = 0, []
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    for dtype in kinds:
        for n_query in (1, 2, 7, 33, 63, 64, 65, 100, 129, 300, 1024):
            for n_key in (n_query, n_query + 500):
                q = torch.randn(2, 8, n_query, 128, device="cuda", dtype=dtype)
                k, v = (torch.randn(2, 8, n_key, 128, device="cuda", dtype=dtype) for _ in range(2))
                mask = torch.rand(2, 1, n_query, n_key, device="cuda") < 0.7
                options: list[dict[str, Any]] = [{}, {"attn_mask": mask}]
                options += [{"is_causal": True}] if n_query == n_key else []
                for option in options:
                    with torch.inference_mode():
                        plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, **option)
                        with Overhear():
                            heard = torch.nn.functional.scaled_dot_product_attention(
                                q, k, v, **option
                            )
                    tried += 1
                    if not torch.equal(plain, heard):
                        differ.append([str(dtype)[6:], n_query, n_key, *option])
    return {"attention_calls": tried, "differ": differ}


def growth() -> list[dict[str, Any]]:
    """How the cost falls with fewer layers: a forward of LLaDA-8B's shape at 4,096 tokens."""
    model, rows = build("LLaDA-8B"), []
    for n in (4, 8, 16, 32):
        ways = ways_of(model, 1, 4096, ["mass", "all but rollout"], range(0, 32, 32 // n))
        times = in_turn(ways, 4)
        row: dict[str, Any] = {"layers": n}
        row |= {way: times[way] / times["plain"] for way in ways if way != "plain"}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def stand_in() -> None:
    """What labels and stores the arrays afterwards is not timed, and may be missing here."""
    for name in ("xarray", "zarr", "pandas"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))


def decoding(name: str, steps: int, size: int, batch: int) -> list[dict[str, Any]]:
    """A whole decoding through the recorder: forwards, statistics, copies to the host."""
    stand_in()
    from floatscope.decode import Autoregressive, Confidence
    from floatscope.decode.loop import decode
    from floatscope.prompt import Encoded
    from floatscope.recording import Recorder

    model = build(name)
    sampler: Any = Confidence(length=WINDOW, steps=steps)
    if not model.is_diffusion:  # as many forwards, each a token: with a KV cache
        sampler = Autoregressive(length=steps)
    names = ("question", "passage 1", "passage 2", "passage 3")
    length = size - sampler.length
    prompts = []
    for b in range(batch):
        ids = torch.randint(0, 120000, (length,), generator=torch.Generator().manual_seed(b))
        regions = [names[i * 4 // length] for i in range(length)]
        prompts.append(Encoded(tuple(ids.tolist()), tuple(regions)))
    rows: list[dict[str, Any]] = []
    first: list[list[int]] = []
    # With a cache every step has another shape, and attention prepares for each: all are warmed.
    warm = ("warm", "warm plain", "warm mass") if not model.is_diffusion else ("warm",)
    for way in (*warm, "plain", "mass", "all", "plain again"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        some = 2 if way == "warm" and model.is_diffusion else steps
        used = replace(sampler, **{"steps" if model.is_diffusion else "length": some})
        start = time.perf_counter()
        if "plain" in way:
            found = decode(model, prompts, used)
        else:
            keep = KEEPS.get(way.removeprefix("warm "), KEEPS["all"])[0]
            with Recorder(model, prompts, used, keep=keep) as recorder:
                found = decode(model, prompts, used, recorder)
            recorder.outbox.settle()
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
        row: dict[str, Any] = {"model": name, "way": way, "steps": some, "S": size, "batch": batch}
        row["s"] = taken
        row["peak_GiB"] = torch.cuda.max_memory_allocated() / GIB
        answers = [d.answer_ids for d in found]
        row["same_tokens"] = not rows or answers == first
        first = first if rows else answers
        if "plain" not in way:
            arrays = [a for r in recorder.recorded for kept in r.arrays.values() for a in kept]
            row["kept_GiB"] = sum(a.nbytes for a in arrays) / GIB
            del recorder, arrays
        if not way.startswith("warm"):
            rows.append(row)
            print(json.dumps(row), flush=True)
    base = (rows[0]["s"] + rows[-1]["s"]) / 2
    for row in rows:
        row["ratio"] = row["s"] / base
        print(row["way"], round(row["ratio"], 3))
    return rows


def profiled() -> list[dict[str, Any]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
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
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
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
