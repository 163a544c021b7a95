"""What the measures cost after tracing: every measure on both models of the pair, in one run.

    python bench/measures.py [--prompts 32] [--json FILE]

Prints seconds for each measure, and seconds a million values of the traces. Measures read what the
traces hold, steps × layers × heads × positions, and never a matrix of positions by positions.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import floatscope as fs
from floatscope.measures import MEASURES
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, World


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--level", default="nine", choices=list(LEVELS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prompts = [prompt_of(e) for e in World().examples(LEVELS[args.level], args.prompts, seed=11)]
    found: dict[str, Any] = {}
    table = Table(title=f"{args.prompts} prompts, level {args.level!r}")
    for name in ("measure", "pair/mdm", "pair/arm", "s a million values"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    seconds: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
    values: dict[str, int] = {}
    for name in ("pair/mdm", "pair/arm"):
        model = fs.load(name)
        sampler: Any = (
            fs.Confidence(length=10) if model.is_diffusion else fs.Autoregressive(length=10)
        )
        start = time.perf_counter()
        traces = model.trace(prompts, sampler, keep=fs.STATISTICS)
        traced = time.perf_counter() - start
        values[name] = sum(v.size for t in traces for v in t.data.data_vars.values())
        for key, measure in MEASURES.items():
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
    if args.json:
        args.json.write_text(json.dumps({"models": found, "seconds": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
