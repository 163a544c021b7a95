"""Cached decodings, recorded and replayed: what they cost, that nothing changes, and that nothing grows.

Stock: transformers alone with its usual cache, a loop as in its `generate`, untraced. Ways take turns, each
round begins with another; ratios are taken within a round. A way is warm before it is timed, so that
recording is timed apart. Everything is measured from the prompt to the last number on the host.
"""

import gc
import json
import resource
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from floatscope.models import Direction, Model, attention_hook, graphs

from .common import GIB, KEEPS, Row
from .replays import Bench, _equal, alone_ms, batch_of, of, seconds, unchanged

PROMPT, TOKENS, BLOCK = 512, 128, 32


def prompts_of(sizes: list[int], seed: int = 0) -> list[Any]:
    from .common import WINDOW

    return batch_of([size + WINDOW for size in sizes], seed)


@torch.inference_mode()
def stock(model: Model, prompts: list[Any], tokens: int, eager: bool) -> torch.Tensor:
    """Greedy, with a look at every token, as `generate` takes it."""
    net = model.net
    ids = torch.tensor([p.ids for p in prompts], device=model.device)
    net.set_attn_implementation("eager" if eager else "sdpa")
    cache, kept, fresh = DynamicCache(config=net.config), [], ids
    for _ in range(tokens):
        found = net(
            input_ids=fresh,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            output_attentions=eager,
        )
        kept.append(found.attentions)
        fresh = found.logits[:, -1].float().argmax(-1)[:, None]
        ids = torch.cat([ids, fresh], dim=1)
        if all(token in model.end_ids for token in fresh[:, 0].tolist()):
            break
    net.set_attn_implementation("sdpa")
    return ids


def in_blocks(bench: Bench) -> Bench:
    """The same weights as a model that decodes in blocks."""
    model = bench.model
    model.direction, model.block, model.mask_id, model.shift = (
        Direction.BLOCK_CAUSAL,
        BLOCK,
        126336,
        0,
    )
    return bench


def ways_of(bench: Bench, prompts: list[Any], sampler: Any) -> dict[str, Callable[[], Any]]:
    def own(mode: str, keep: str | None) -> Callable[[], Any]:
        def way() -> Any:
            with bench.graphs(mode):
                return bench.run(prompts, sampler, None if keep is None else KEEPS[keep][0])

        return way

    ways = {
        "launched": own("off", None),
        "replayed": own("always", None),
        "mass": own("always", "mass"),
        "all": own("always", "all"),
    }
    if not bench.model.is_diffusion:
        ways["stock"] = lambda: stock(bench.model, prompts, sampler.length, False)
        ways["eager"] = lambda: stock(bench.model, prompts, sampler.length, True)
    return ways


def _times(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for turn in range(rounds):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            times[name].append(seconds(ways[name]))
            gc.collect()
    return times


def cached(
    rounds: int = 4,
    batches: tuple[int, ...] = (1, 8),
    kinds: tuple[str, ...] = ("causal", "blocks"),
    chosen: list[str] | None = None,
) -> list[Row]:
    """Whole decodings by way: a causal model token by token, and the same weights in blocks."""
    from floatscope.decode import Autoregressive, Confidence

    bench, rows = Bench("Llama-8B"), []
    for kind, batch in ((kind, batch) for kind in kinds for batch in batches):
        sampler: Any = Autoregressive(length=TOKENS)
        if kind == "blocks":
            in_blocks(bench)
            sampler = Confidence(length=TOKENS, steps=TOKENS)
        row: Row = {"model": "Llama-8B", "kind": kind, "batch": batch}
        row |= {"prompt": PROMPT, "tokens": TOKENS, "steps": TOKENS}
        row |= _row(bench, prompts_of([PROMPT] * batch), sampler, rounds, chosen)
        rows.append(row)
        print(json.dumps(row), flush=True)
        graphs.store_of(bench.model.net).forget()
        gc.collect()
        torch.cuda.empty_cache()
    for row in rows:
        base = next(name for name in ("stock", "launched", "replayed") if f"{name}_s" in row)
        print(
            f"{row['kind']} {row['batch']}  {base} {row[f'{base}_s'] / TOKENS * 1e3:6.2f} ms a step |",
            *(
                f"{name} {row[f'{name}_over_{base}']:.3f}/{row[f'{name}_over_replayed']:.3f}"
                for name in ("launched", "replayed", "mass", "all", "eager")
                if f"{name}_s" in row
            ),
        )
    return rows


def _row(
    bench: Bench, prompts: list[Any], sampler: Any, rounds: int, chosen: list[str] | None
) -> Row:
    ways = ways_of(bench, prompts, sampler)
    ways = {name: way for name, way in ways.items() if chosen is None or name in chosen}
    row: Row = {}
    for name, way in ways.items():
        bench.recordings.clear()
        way()
        if bench.recordings:
            row[f"{name}_recording_s"] = sum(bench.recordings)
            row[f"{name}_recordings"] = len(bench.recordings)
        way()  # memory that is used again is pinned: once
    times = _times(ways, rounds)
    row["rounds_s"] = times
    for name in ways:
        row[f"{name}_s"] = statistics.median(times[name])
    for base in ("stock", "launched", "replayed"):
        for name in ways if base in ways else ():
            ratios = [a / b for a, b in zip(times[name], times[base], strict=True)]
            row[f"{name}_over_{base}"] = statistics.median(ratios)
            row[f"{name}_over_{base}_range"] = [min(ratios), max(ratios)]
    if "launched" in ways:
        row |= _paying(bench, prompts, sampler, row)
    store = graphs.store_of(bench.model.net)
    row["graphs_GiB"] = store.bytes / GIB
    row["rooms_GiB"] = sum(t.nbytes for r in store.rooms.values() for t in r.tensors()) / GIB
    row["replay_alone_ms"] = [[of(one), alone_ms(one)] for one in store.recorded.values()]
    return row


def _paying(bench: Bench, prompts: list[Any], sampler: Any, times: Row) -> Row:
    """From which step on a recording pays."""
    row: Row = {}
    # Launched and traced a token takes long, and as long as the next: a quarter of them is timed.
    short = replace(sampler, length=TOKENS // 4)
    if hasattr(short, "steps"):
        short = replace(short, steps=TOKENS // 4)
    slow = {"replayed": times["launched_s"] / TOKENS}
    for keep in ("mass", "all"):
        with bench.graphs("off"):
            run = partial(bench.run, prompts, short, KEEPS[keep][0])
            run()
            slow[keep] = seconds(run) / (TOKENS // 4)
        row[f"{keep} launched_s_a_step"] = slow[keep]
    for name, launched in slow.items():
        gain = launched - times[f"{name}_s"] / TOKENS
        row[f"{name}_pays_from"] = times[f"{name}_recording_s"] / gain if gain > 0 else None
    return row


def cached_same(chosen: list[str] | None = None) -> list[Row]:
    """Tokens, confidences and statistics: watched or not, launched or replayed; against float64."""
    from floatscope.decode import Autoregressive, Confidence

    bench, rows = Bench("Llama-8B"), []
    every = Autoregressive(length=24)
    cases: list[tuple[str, str, list[int], Any]] = [
        ("one", "causal", [512], every),
        ("into a larger room", "causal", [244], Autoregressive(length=40)),
        ("padding", "causal", [300, 512, 217], every),
        ("drawn", "causal", [256], Autoregressive(length=24, temperature=0.8)),
        ("in blocks", "blocks", [448], Confidence(length=96, steps=24)),
        ("in blocks, padding", "blocks", [300, 448], Confidence(length=64, steps=16)),
    ]
    for name, kind, sizes, sampler in cases:
        if chosen is not None and name not in chosen:
            continue
        if kind == "blocks":
            in_blocks(bench)
        keep = KEEPS["all"][0]
        prompts = prompts_of(sizes, seed=7)
        with bench.graphs("off"):
            launched, _ = bench.run(prompts, sampler, keep)
        bench.recordings.clear()
        with bench.graphs("always"):
            plain, _ = bench.run(prompts, sampler, None)
            first, found_first = bench.run(prompts, sampler, keep)
            again, found_again = bench.run(prompts, sampler, keep)  # all from graphs now
            bench.run(prompts_of(sizes, seed=99), sampler, keep)
            back, found_back = bench.run(prompts, sampler, keep)
        row: Row = {"case": name, "recordings": len(bench.recordings)}
        row |= unchanged(plain, {"traced": first, "again": again, "back": back})
        row["differ"] = _equal(found_first, found_again) + _equal(found_back, found_again)
        row["tokens as launched"] = [
            float((a.canvas[-1] == b.canvas[-1])[-sampler.length :].mean())
            for a, b in zip(launched, plain, strict=True)
        ]
        if kind == "causal":
            row["against_float64"] = float64_error(bench.model, prompts, again, found_again)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


@torch.inference_mode()
def float64_error(
    model: Model, prompts: list[Any], decoded: list[Any], found: list[dict[str, np.ndarray]]
) -> dict[str, float]:
    """Of the sums over all rows at the last step, first layer, against their definition: q and k of one
    forward over the whole text, in which bfloat16 rounds otherwise than row by row."""
    from floatscope.attention import Labels

    worst = {"column_sum": 0.0, "entropy": 0.0}
    for one, arrays in zip(decoded, found, strict=True):
        ids = torch.from_numpy(one.canvas[-2][one.canvas[-2] >= 0])[None].to(model.device)
        none = torch.zeros(1, dtype=torch.long, device=model.device)
        visible = model.visibility(ids.shape[1], ids.shape[1], none)
        labels = Labels(torch.zeros_like(ids), 1, torch.zeros_like(ids), 1)
        look = partial(_compare, visible, labels, arrays, worst)
        with attention_hook.attach(model.net, look):
            model.logits(ids)
    return worst


def _compare(
    visible: Any,
    labels: Any,
    found: dict[str, np.ndarray],
    worst: dict[str, float],
    call: attention_hook.Call,
    proceed: attention_hook.Proceed,
) -> torch.Tensor:
    from floatscope.attention import View, reference

    if call.layer == 0:  # deeper layers see what rounding has made of the ones below
        sums, size = reference.sums(View.from_call(call, visible, labels)), call.query.shape[2]
        total = torch.from_numpy(found["column_sum"][-1][:, 0]).sum(0).double()[..., :size]
        true = sums["column_sum"][0, 0].cpu()
        error = float((total - true).abs().max() / true.abs().max())
        worst["column_sum"] = max(worst["column_sum"], error)
        most = torch.arange(1, size + 1).double().log()
        mine = torch.from_numpy(found["entropy"][-1][0]).double()[..., :size] * most
        gap = (mine - sums["entropy"][0].cpu())[..., 1:] / most[1:]
        worst["entropy"] = max(worst["entropy"], float(gap.abs().max()))
    return proceed(call)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cached_memory(tokens: int = 1000) -> list[Row]:
    """A thousand replayed steps: device memory after 100 and at the end; the host's beside its arrays."""
    from floatscope.decode import Autoregressive

    bench, rows = Bench("Llama-8B"), []
    prompts, sampler = prompts_of([PROMPT]), Autoregressive(length=tokens)
    for way, keep in (("replayed", None), ("mass", KEEPS["mass"][0])):
        seen: dict[int, tuple[int, int]] = {}

        def tick(done: int, of: int, seen: dict[int, tuple[int, int]] = seen) -> None:
            if done in (100, tokens - PROMPT, tokens):
                torch.cuda.synchronize()
                seen[done] = torch.cuda.memory_allocated(), resident()

        with bench.graphs("always"):
            taken = seconds(lambda keep=keep, tick=tick: bench.run(prompts, sampler, keep, tick))  # type: ignore[misc]
        row: Row = {"way": way, "steps": tokens, "prompt": PROMPT, "s": taken}
        row["device_MB"] = {n: round(device / 1e6, 1) for n, (device, _) in seen.items()}
        row["host_MB"] = {n: round(host / 1e6, 1) for n, (_, host) in seen.items()}
        if keep is not None:  # the trace itself: as many columns as there are in the end
            cells = bench.model.n_layers * bench.model.n_heads * (PROMPT + tokens)
            row["trace_MB_a_step"] = round(cells * 4 / 1e6, 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows
