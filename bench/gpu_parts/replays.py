"""Decodings whose forwards are recorded and replayed: what they cost, and that nothing changes.

Stock: the same loop, its forwards by transformers alone, untraced. Ways take turns, each round begins with
another; ratios are taken within a round. Recording is timed apart: a way is warm before it is timed.
"""

import gc
import itertools
import json
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from floatscope.models import Model, attention_hook, graphs

from .common import GIB, KEEPS, WINDOW, Row, build

STEPS = 32
END = 126081  # an end token: the loop looks after every step whether one has come


def batch_of(sizes: list[int], seed: int = 0) -> list[Any]:
    from floatscope.sequences.prompt import Encoded

    names = ("question", "passage 1", "passage 2", "passage 3")
    prompts = []
    for b, size in enumerate(sizes):
        length = size - WINDOW
        generator = torch.Generator().manual_seed(seed + b)
        ids = torch.randint(0, 120000, (length,), generator=generator).tolist()
        prompts.append(Encoded(tuple(ids), tuple(names[i * 4 // length] for i in range(length))))
    return prompts


class Bench:
    """One model and the ways to decode with it."""

    def __init__(self, name: str) -> None:
        self.model: Model = build(name)
        self.model.end_ids = (END,)
        recordings: list[float] = []  # a name that does not lead back to the model
        self.recordings = recordings
        record = graphs.Store.record

        def timed(store: graphs.Store, *rest: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            made = record(store, *rest)
            torch.cuda.synchronize()
            recordings.append(time.perf_counter() - start)
            return made

        graphs.Store.record = timed  # type: ignore[method-assign,assignment]

    @contextmanager
    def graphs(self, mode: str) -> Iterator[None]:
        """off; when it pays, as for a user; or always."""
        from floatscope.decode import replay

        rule = replay.least_forwards
        self.model.graphs = mode != "off"
        if mode == "always":
            replay.least_forwards = lambda *_: 0.0
        try:
            yield
        finally:
            replay.least_forwards = rule
            self.model.graphs = True

    def run(
        self, prompts: list[Any], sampler: Any, keep: set[str] | None, progress: Any = None
    ) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
        """Tokens and, if traced, every array of the trace."""
        from floatscope.decode.loop import decode
        from floatscope.recording.kept import KeptSteps
        from floatscope.recording.options import TraceOptions
        from floatscope.recording.recorder import Recorder

        if keep is None:
            return decode(self.model, prompts, sampler, progress=progress, cache="auto"), []
        with Recorder(self.model, prompts, sampler, TraceOptions(keep=keep)) as recorder:
            found = decode(self.model, prompts, sampler, recorder, progress, "auto")
        arrays = []
        for one in recorder.recorded:
            events = {name: np.concatenate(rows) for name, rows in one.event_arrays.items()}
            kept = one.step_store
            assert isinstance(kept, KeptSteps)
            steps = {name: values[: len(kept.steps)] for name, values in kept.arrays.items()}
            arrays.append({**steps, **events, "events": np.array(one.events)})
        return found, arrays

    @contextmanager
    def by_transformers(self, eager: bool) -> Iterator[None]:
        model, net = self.model, self.model.net
        kept: list[Any] = []

        def predict(canvas: Any, start: int, stop: int, visible: Any) -> torch.Tensor:
            kept.clear()
            rows = torch.arange(start, stop, device=canvas.device) - model.shift
            found = net(
                input_ids=canvas,
                use_cache=False,
                is_causal=False,
                logits_to_keep=rows,
                output_attentions=eager,
            )
            kept.append(found.attentions)
            logits: torch.Tensor = found.logits
            return logits

        net.set_attn_implementation("eager" if eager else "sdpa")
        model.predict = predict  # type: ignore[method-assign,assignment]
        model.graphs = False
        try:
            yield
        finally:
            del model.predict
            model.graphs = True
            net.set_attn_implementation("sdpa")

    def ways(self, prompts: list[Any], sampler: Any) -> dict[str, Callable[[], Any]]:
        def own(mode: str, keep: str | None) -> Callable[[], Any]:
            def way() -> Any:
                with self.graphs(mode):
                    return self.run(prompts, sampler, None if keep is None else KEEPS[keep][0])

            return way

        def theirs(eager: bool) -> Callable[[], Any]:
            def way() -> Any:
                with self.by_transformers(eager):
                    return self.run(prompts, sampler, None)

            return way

        return {
            "stock": theirs(False),
            "launched": own("off", None),
            "replayed": own("always", None),
            "mass launched": own("off", "mass"),
            "mass": own("always", "mass"),
            "all launched": own("off", "all"),
            "all": own("always", "all"),
            "eager": theirs(True),
        }


def seconds(way: Callable[[], Any]) -> float:
    """Until the last number is there; what it gave is let go afterwards."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    kept = way()
    torch.cuda.synchronize()
    taken = time.perf_counter() - start
    del kept
    return taken


def replayed(
    sizes: tuple[int, ...] = (256, 512, 1024, 2048),
    rounds: int = 4,
    chosen: list[str] | None = None,
) -> list[Row]:
    """Whole decodings at batch 1, 32 steps, by length and way (all of them, or those chosen)."""
    from floatscope.decode import Confidence

    bench, rows = Bench("LLaDA-8B"), []
    sampler = Confidence(length=WINDOW, steps=STEPS)
    for size in sizes:
        ways = bench.ways(batch_of([size]), sampler)
        ways = {name: way for name, way in ways.items() if chosen is None or name in chosen}
        row: Row = {"S": size, "batch": 1, "steps": STEPS}
        for name, way in ways.items():
            bench.recordings.clear()
            way()
            if bench.recordings:
                row[f"{name}_recording_s"] = bench.recordings[0]
            way()  # memory that is used again is pinned: once
        times: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        for turn in range(rounds):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                times[name].append(seconds(ways[name]))
        for name in ways:
            row[f"{name}_s"] = statistics.median(times[name])
        for base in ("stock", "replayed"):
            for name in ways:
                ratios = [a / b for a, b in zip(times[name], times[base], strict=True)]
                row[f"{name}_over_{base}"] = statistics.median(ratios)
                row[f"{name}_over_{base}_range"] = [min(ratios), max(ratios)]
        for name, launched in (
            ("replayed", "launched"),
            ("mass", "mass launched"),
            ("all", "all launched"),
        ):
            if launched not in ways:
                continue
            gain = (row[f"{launched}_s"] - row[f"{name}_s"]) / STEPS
            cost = row[f"{name}_recording_s"]
            row[f"{name}_pays_from"] = cost / gain if gain > 0 else None
        store = graphs.store_of(bench.model.net)
        row["graphs_GiB"] = store.bytes / GIB
        row["replay_alone_ms"] = {of(one): alone_ms(one) for one in store.recorded.values()}
        rows.append(row)
        print(size, row["graphs_GiB"], json.dumps(row["replay_alone_ms"]), flush=True)
        store.forget()
        gc.collect()
        torch.cuda.empty_cache()
    for row in rows:
        print(
            f"S {row['S']:5d}  stock {row['stock_s'] / STEPS * 1e3:6.1f} ms a step |"
            + " ".join(
                f"{name} {row[f'{name}_over_stock']:.3f}/{row[f'{name}_over_replayed']:.3f}"
                for name in (
                    "launched",
                    "replayed",
                    "mass launched",
                    "mass",
                    "all launched",
                    "all",
                    "eager",
                )
                if f"{name}_s" in row
            )
            + " | recording ms "
            + " ".join(
                f"{row[f'{name}_recording_s'] * 1e3:.0f} (from {row.get(f'{name}_pays_from') or -1:.0f})"
                for name in ("replayed", "mass", "all")
            )
        )
    return rows


def of(recorded: graphs.Recorded) -> str:
    """Which way a graph was recorded for."""
    left = recorded.result[1]
    if len(left) < 2 or not left[1].values:
        return "replayed"
    return "mass" if len(left[1].values) == 2 else "all"


def alone_ms(recorded: graphs.Recorded, times: int = 10) -> float:
    """A forward's kernels, one replay after the other: what is left when the host takes no time."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    recorded.graph.replay()
    start.record()
    for _ in range(times):
        recorded.graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / times


def _equal(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> list[str]:
    """Names of the arrays that differ anywhere in a bit."""
    wrong = set()
    for a, b in zip(one, other, strict=True):
        for name in a.keys() | b.keys():
            if (
                name not in a
                or name not in b
                or not np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f")
            ):
                wrong.add(name)
    return sorted(wrong)


def unchanged(plain: list[Any], ways: dict[str, list[Any]]) -> Row:
    """Tokens and confidences of each way are those of the plain one, bit for bit."""
    row: Row = {}
    for way, some in ways.items():
        pairs = list(zip(plain, some, strict=True))
        row[f"tokens {way}"] = all(np.array_equal(a.canvas, b.canvas) for a, b in pairs)
        row[f"confidence {way}"] = all(
            np.array_equal(a.confidence, b.confidence, equal_nan=True) for a, b in pairs
        )
    return row


def replays_same() -> list[Row]:
    """Tokens, confidences and every statistic, launched and replayed, bit for bit; against float64."""
    from floatscope.decode import Confidence, Random

    bench, rows = Bench("LLaDA-8B"), []
    cases = {
        "one": ([512], Confidence(length=WINDOW, steps=8)),
        "odd size": ([333], Random(length=WINDOW, steps=8)),
        "padding": ([300, 512, 217], Confidence(length=WINDOW, steps=8)),
        "blocks": ([400], Confidence(length=WINDOW, steps=12, block_length=32)),
        "guidance": ([256], Confidence(length=WINDOW, steps=8, cfg=1.0, temperature=0.7)),
    }
    for name, (sizes, sampler) in cases.items():
        prompts = batch_of(sizes, seed=7)
        with bench.graphs("off"):
            plain, _ = bench.run(prompts, sampler, None)
            traced, expected = bench.run(prompts, sampler, KEEPS["all"][0])
        bench.recordings.clear()
        with bench.graphs("always"):
            plain_again, _ = bench.run(prompts, sampler, None)
            replayed_, found = bench.run(prompts, sampler, KEEPS["all"][0])
            replayed_, found = bench.run(prompts, sampler, KEEPS["all"][0])  # all from graphs now
            other, _ = bench.run(batch_of(sizes, seed=99), sampler, KEEPS["all"][0])
            back, found_back = bench.run(prompts, sampler, KEEPS["all"][0])
        row: Row = {"case": name, "recordings": len(bench.recordings)}
        every = {"traced": traced, "replayed": plain_again, "all": replayed_, "again": back}
        row |= unchanged(plain, every)
        row["differ"] = _equal(found, expected) + _equal(found_back, expected)
        row["another prompt differs"] = not np.array_equal(other[0].canvas, plain[0].canvas)
        if name in ("one", "padding"):
            row["against_float64"] = float64_error(bench.model, prompts, sampler, plain, found)
        rows.append(row)
        print(json.dumps(row), flush=True)
    rows.append(failing(bench))
    print(json.dumps(rows[-1]), flush=True)
    return rows


@torch.inference_mode()
def float64_error(
    model: Model,
    prompts: list[Any],
    sampler: Any,
    decoded: list[Any],
    found: list[dict[str, np.ndarray]],
) -> dict[str, float]:
    """Of the replayed sums at the last step, three layers, against the definition on the same q and k."""
    from floatscope.attention import Labels, View, reference

    ends = [len(p.ids) for p in prompts]
    wide = max(ends)
    canvas = torch.zeros(len(prompts), wide + WINDOW, dtype=torch.long, device=model.device)
    for b, one in enumerate(decoded):
        canvas[b, wide - ends[b] :] = torch.from_numpy(one.canvas[-2])
    padding = torch.tensor([wide - n for n in ends], device=model.device)
    size = canvas.shape[1]
    visible = model.visibility(size, size, padding)
    group = torch.zeros_like(canvas).masked_fill(~visible.key_is_real, -1)
    labels = Labels(group, 1, group, 1)
    worst = {"column_sum": 0.0, "entropy": 0.0}

    def compare(call: attention_hook.Call, proceed: attention_hook.Proceed) -> torch.Tensor:
        if call.layer in (0, model.n_layers // 2, model.n_layers - 1):
            sums = reference.sums(View.from_call(call, visible, labels))
            for b, pad in enumerate(padding.tolist()):
                total = torch.from_numpy(found[b]["column_sum"][-1][:, call.layer]).sum(0).double()
                true = sums["column_sum"][b, 0, :, pad:].cpu()
                error = float((total - true).abs().max() / true.abs().max())
                worst["column_sum"] = max(worst["column_sum"], error)
                nats = sums["entropy"][b, :, pad:].cpu() / np.log(size - pad)
                mine = torch.from_numpy(found[b]["entropy"][-1][call.layer]).double()
                worst["entropy"] = max(worst["entropy"], float((mine - nats).abs().max()))
        return proceed(call)

    with attention_hook.attach(model.net, compare):
        model.predict(canvas, size - WINDOW, size, visible)
    return worst


def failing(bench: Bench) -> Row:
    """A recording in which something waits for the device: a warning, the same numbers, and no harm."""
    from floatscope.attention import backend
    from floatscope.decode import Confidence

    prompts, sampler = batch_of([192], seed=3), Confidence(length=WINDOW, steps=6)
    with bench.graphs("off"):
        _, expected = bench.run(prompts, sampler, KEEPS["mass"][0])
    right = backend.sums

    def waiting(*args: Any, **options: Any) -> Any:
        torch.cuda.synchronize()
        return right(*args, **options)

    backend.sums = waiting
    try:
        with warnings.catch_warnings(record=True) as caught, bench.graphs("always"):
            warnings.simplefilter("always")
            _, found = bench.run(prompts, sampler, KEEPS["mass"][0])
    finally:
        backend.sums = right
    said = [str(one.message)[:160] for one in caught]
    graphs.store_of(bench.model.net).refused.clear()
    bench.recordings.clear()
    with bench.graphs("always"):
        _, after = bench.run(prompts, sampler, KEEPS["mass"][0])
    torch.empty(4, device="cuda").normal_()  # the device's random numbers go on
    return {
        "case": "a recording that fails",
        "given up": list(graphs._given_up),
        "said": said,
        "differ": _equal(found, expected),
        "recorded afterwards": len(bench.recordings),
        "differ afterwards": _equal(after, expected),
    }


def memory() -> list[Row]:
    """1,000 replayed steps: device memory after 100 and after 1,000; the host's beside its arrays."""
    from floatscope.decode import Remask

    bench, rows = Bench("LLaDA-8B"), []
    prompts, sampler = batch_of([256]), Remask(length=WINDOW, steps=1000)
    for way, keep in (("replayed", None), ("mass", KEEPS["mass"][0])):
        seen: dict[int, tuple[int, int]] = {}

        def tick(done: int, of: int, seen: dict[int, tuple[int, int]] = seen) -> None:
            if done in (100, 1000):
                torch.cuda.synchronize()
                host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                seen[done] = torch.cuda.memory_allocated(), host

        with bench.graphs("always"):
            taken = seconds(lambda keep=keep, tick=tick: bench.run(prompts, sampler, keep, tick))  # type: ignore[misc]
        row: Row = {"way": way, "steps": 1000, "S": 256, "s": taken}
        row["device_growth_MB"] = (seen[1000][0] - seen[100][0]) / 1e6
        row["host_growth_MB"] = (seen[1000][1] - seen[100][1]) / 1e6
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def whole(
    rounds: int = 2, steps: int = STEPS, size: int = 2048, batch: int = 8
) -> list[dict[str, Any]]:
    """A large batch, launched as a user's is; the ways take turns."""
    from floatscope.decode import Confidence

    bench = Bench("LLaDA-8B")
    prompts, sampler = batch_of([size] * batch), Confidence(length=WINDOW, steps=steps)
    short = Confidence(length=WINDOW, steps=3)
    keeps = {name: None if name == "plain" else KEEPS[name][0] for name in ("plain", "mass", "all")}
    for keep in keeps.values():
        bench.run(prompts, short, keep)
    rows: dict[str, Row] = {
        way: {"way": way, "steps": steps, "S": size, "batch": batch, "rounds_s": []}
        for way in keeps
    }
    order = list(keeps)
    for turn in range(rounds):
        for way in order[turn % 3 :] + order[: turn % 3]:
            ticks = [time.perf_counter()]
            row = rows[way]
            taken = seconds(
                lambda keep=keeps[way], ticks=ticks: bench.run(  # type: ignore[misc]
                    prompts, sampler, keep, lambda *_: ticks.append(time.perf_counter())
                )
            )
            gaps = [b - a for a, b in itertools.pairwise(ticks[1:])]
            row["rounds_s"].append(taken)
            row.setdefault("median_step_s", []).append(statistics.median(gaps))
            row.setdefault("after_last_step_s", []).append(taken - (ticks[-1] - ticks[0]))
            print(
                json.dumps({"way": way, "s": taken, "step": row["median_step_s"][-1]}), flush=True
            )
            gc.collect()
    for row in rows.values():
        each = zip(row["rounds_s"], rows["plain"]["rounds_s"], strict=True)
        ratios = [mine / plain for mine, plain in each]
        row["ratio"], row["ratio_range"] = statistics.median(ratios), [min(ratios), max(ratios)]
        print(row["way"], [round(one, 3) for one in ratios])
    return list(rows.values())
