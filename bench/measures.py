"""What the measures cost after tracing: every measure on both models of the pair, and those of a study on a
large synthetic trace.

    python bench/measures.py [--prompts 32] [--shape 32,16,32,1024] [--json FILE]

Prints seconds for each measure, and seconds a million values of the traces; of the large trace (layers,
heads, steps, positions) CPU seconds and the memory that each measure allocates at its peak. Measures read
what the traces hold, steps × layers × heads × positions, and never a matrix of positions by positions.
"""

import argparse
import json
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

import floatscope as fs
from floatscope.measures import MEASURES
from floatscope.studies.library import Floating, Retrieval, Structure
from floatscope.studies.request import Request
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--level", default="nine", choices=list(LEVELS))
    parser.add_argument("--shape", default="32,16,32,1024", help="layers,heads,steps,positions")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    large = study_of(*map(int, args.shape.split(",")))
    prompts = [prompt_of(e) for e in World().examples(LEVELS[args.level], args.prompts, seed=11)]
    found: dict[str, Any] = {}
    table = Table(title=f"{args.prompts} prompts, level {args.level!r}")
    for name in ("measure", "pair/mdm", "pair/arm", "s a million values"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    # The pair has no experts, and Movement takes states that are read apart.
    asked = {n: m for n, m in MEASURES.items() if n not in ("movement", "expert-routing")}
    seconds: dict[str, dict[str, float]] = {name: {} for name in asked}
    values: dict[str, int] = {}
    for name in ("pair/mdm", "pair/arm"):
        model = fs.load(name)
        sampler: Any = (
            fs.Confidence(length=10) if model.is_diffusion else fs.Autoregressive(length=10)
        )
        start = time.perf_counter()
        traces = model.trace(prompts, sampler, keep=fs.statistics.STATISTICS)
        traced = time.perf_counter() - start
        values[name] = sum(v.size for t in traces for v in t.data.data_vars.values())
        for key, measure in asked.items():
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # stated limits, as on short sequences
                measure()(traces)
            seconds[key][name] = time.perf_counter() - start
        found[name] = {"tracing_s": traced, "values": values[name]}
    for key, by_model in seconds.items():
        rate = sum(by_model.values()) / sum(values.values()) * 1e6
        cells = [f"{by_model[m]:.2f} s" for m in ("pair/mdm", "pair/arm")]
        table.add_row(key, *cells, f"{rate:.3f}")
    total = [sum(by[m] for by in seconds.values()) for m in ("pair/mdm", "pair/arm")]
    table.add_section()
    table.add_row(
        "all", *(f"{t:.1f} s" for t in total), f"{sum(total) / sum(values.values()) * 1e6:.2f}"
    )
    table.add_row("tracing", *(f"{found[m]['tracing_s']:.1f} s" for m in found), "")
    table.add_row("values", *(f"{values[m] / 1e6:.1f}M" for m in found), "")
    Console().print(table)
    Console().print(table_of(large, args.shape))
    if args.json:
        whole = {"models": found, "seconds": seconds, "large": large}
        args.json.write_text(json.dumps(whole, indent=1) + "\n")


def table_of(large: dict[str, Any], shape: str) -> Table:
    size, rows = large["trace_mb"], large["measures"]
    table = Table(title=f"study floating structure retrieval, {shape}: a trace of {size:.0f} MB")
    for name in ("measure", "CPU", "peak"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for key, row in rows.items():
        table.add_row(key, f"{row['cpu_s']:.3f} s", f"{row['peak_mb']:.1f} MB")
    total, peak = (sum(r["cpu_s"] for r in rows.values()), max(r["peak_mb"] for r in rows.values()))
    table.add_section()
    table.add_row("all", f"{total:.2f} s", f"{peak:.0f} MB")
    table.add_row("of the trace", f"{1e3 * total / size:.2f} s/GB", f"{peak / size:.0%}")
    return table


def synthetic(layers: int, heads: int, steps: int, size: int, answer: int = 128) -> fs.Trace:
    """A trace of random attention with an anchor in every layer, as an 8B model's study would keep it."""
    rng = np.random.default_rng(0)
    prompt = size - answer
    when = np.sort(rng.integers(0, steps, answer))  # the step that reveals each answer position
    masked = np.zeros((steps, size), bool)
    masked[:, prompt:] = when >= np.arange(steps)[:, None]
    ids = rng.integers(10, 1000, size)
    canvas = np.vstack([np.where(masked, 3, ids), ids[None]])
    counted = np.array([[m.sum(), answer - m.sum(), prompt] for m in masked], np.float32)
    column = rng.lognormal(0, 1, (steps, 1, layers, heads, size)).astype(np.float32)
    column[..., :: size // 3] *= 50
    column /= column.sum(-1, keepdims=True)
    column = column * counted[:, :, None, None, None]
    events = answer
    regions = np.repeat(["passage 1", "passage 2", "question"], -(-prompt // 3))[:prompt]
    names = ["passage 1", "passage 2", "question", "masked", "revealed"]
    keyed, full = ("step", "key"), ("event", "layer", "head")
    flow = rng.dirichlet(np.ones(len(names)), (events, layers, heads)).astype(np.float32)
    variables = {
        "column_sum": (("step", "group", "layer", "head", "key"), column),
        "rows_counted": (("step", "group"), counted),
        "entropy": (
            ("step", "layer", "head", "query"),
            rng.random((steps, layers, heads, size), np.float32),
        ),
        "null": (keyed, np.full((steps, size), 1 / size, np.float32)),
        "visible": (keyed, np.full((steps, size), size, np.float32)),
        "canvas": (("state", "key"), canvas),
        "change": (("tick", "key"), ((canvas[:-1] == 3) & (canvas[1:] != 3)).astype(np.int8)),
        "block": (("tick", "edge"), np.tile([prompt, size], (steps, 1))),
        "row_key": ((*full, "rank"), rng.integers(0, size, (events, layers, heads, 8), np.int32)),
        "row_weight": ((*full, "rank"), rng.random((events, layers, heads, 8), np.float32)),
        "row_flow": ((*full, "target"), flow),
    }
    classes = np.where(rng.random(size) < 0.5, "content", "function")
    coords = {
        **{d: np.arange(n) for d, n in (("step", steps), ("layer", layers), ("head", heads))},
        **{d: np.arange(size) for d in ("key", "query")},
        "group": ["masked", "revealed", "prompt"],
        **dict.fromkeys(("source", "target"), names),
        "token": (keyed, canvas[:-1].astype(str).astype(object)),
        "final_token": ("key", ids.astype(str)),
        "region": ("key", np.append(regions, np.full(answer, "answer"))),
        "token_class": (keyed, np.where(masked, "mask", classes)),
        "masked": (keyed, masked),
        "event_step": ("event", when),
        "event_position": ("event", np.arange(prompt, size)),
        "event_token": ("event", ids[prompt:]),
    }
    about = {"text": "", "ended": "complete", "prompt_length": prompt, "gold": "passage 1"}
    about |= {"model": "synthetic", "direction": "bidirectional", "sampler": "", "shift": 0}
    about |= {"block_size": 0, "mask_id": 3, "end_ids": [2]}
    return fs.Trace(xr.Dataset(variables, coords, about))


def study_of(layers: int, heads: int, steps: int, size: int) -> dict[str, Any]:
    """Every measure of `study floating structure retrieval` on one large trace, one after another."""
    trace = synthetic(layers, heads, steps, size)
    studies = {study.name: study() for study in (Floating, Structure, Retrieval)}
    request = Request.model_validate({"studies": [*studies], "models": ["pair/mdm"]})
    measures = {key: m for study in studies.values() for key, m in study.measures(request).items()}
    rows: dict[str, dict[str, float]] = {}
    for measure in measures.values():  # imports, and what is computed once in a process
        measure.example(synthetic(2, 2, 3, 256, 16))
    for key, measure in measures.items():
        start = time.process_time()
        measure.example(trace)
        rows[key] = {"cpu_s": time.process_time() - start}
    # Once more on a fresh trace, for memory: tracemalloc slows what it watches.
    trace = fs.Trace(trace.data)
    tracemalloc.start()
    for key, measure in measures.items():
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        measure.example(trace)
        rows[key]["peak_mb"] = (tracemalloc.get_traced_memory()[1] - before) / 1e6
    tracemalloc.stop()
    return {"trace_mb": trace.nbytes / 1e6, "measures": rows}


if __name__ == "__main__":
    main()
