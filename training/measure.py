"""What the finished pair does, measured with the package: answers, attention, time.

    python -m training.measure --out src/floatscope/models/embedded/results.json

Answers are decoded by the package from the same examples for both models, with 10 masks or tokens;
attention is traced on one set of prompts for both. Every number has its 95 % bootstrap interval over
examples, and every share its null. It reports what is there and chooses nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import floatscope as fs
from floatscope.tasks import prompt_of
from floatscope.tasks.world import LEVELS, Example, World

MODELS = ("pair/mdm", "pair/arm")
SLOTS = 10


def sampler_of(model: fs.Model, steps: int = SLOTS) -> Any:
    if model.is_diffusion:
        return fs.Confidence(length=SLOTS, steps=steps, stop_at_eos=False)
    return fs.Autoregressive(length=SLOTS)


def interval(values: Sequence[float], *, seed: int = 0, draws: int = 2000) -> dict[str, float]:
    """Mean and 95 % bootstrap interval over examples; NaNs are left out and counted."""
    x = np.asarray(values, float)
    real = x[~np.isnan(x)]
    if len(real) == 0:
        return {"mean": float("nan"), "low": float("nan"), "high": float("nan"), "n": 0}
    draw = np.random.default_rng(seed).integers(0, len(real), (draws, len(real)))
    low, high = np.quantile(real[draw].mean(1), [0.025, 0.975])
    return {"mean": float(real.mean()), "low": float(low), "high": float(high), "n": len(real)}


def answers(model: fs.Model, examples: Sequence[Example]) -> list[float]:
    """1 for an exact match, 0 otherwise, example by example."""
    order = sorted(range(len(examples)), key=lambda i: len(prompt_of(examples[i]).text))
    hits = [0.0] * len(examples)
    for start in range(0, len(order), 32):
        batch = order[start : start + 32]
        found = model.generate(
            [prompt_of(examples[i]) for i in batch], sampler_of(model), batch_size=32
        )
        for i, one in zip(batch, found, strict=True):
            hits[i] = float(one.text.strip() == examples[i].answers[0])
    return hits


def suites(n: int) -> dict[str, list[Example]]:
    """A check on the training machine's own results, which have more questions and suites."""
    world = World()
    rng = random.Random("closed book, measured")
    return {
        "unseen people, 9 passages": world.examples(LEVELS["nine"], n, seed=100),
        "unseen people, two hops": world.examples(LEVELS["hops"], n, seed=120),
        "known people, closed book": [world.ask_known(rng) for _ in range(n)],
        "unseen people, closed book": [
            e.closed_book() for e in world.examples(LEVELS["nine"], n, seed=122)
        ],
    }


def attention(model: fs.Model, examples: Sequence[Example]) -> dict[str, Any]:
    """By layer, head mean: position 0, the strongest key, and whether it stays, with intervals."""
    rows: list[dict[str, np.ndarray]] = []
    tops: list[np.ndarray] = []
    for example in examples:
        trace = model.trace(prompt_of(example), sampler_of(model), keep=["mass"])
        mass = trace.mean_mass  # (step, layer, key)
        null = trace.null
        top = mass.fillna(-1).argmax("key").values  # (step, layer)
        step = np.arange(len(top))
        strongest = mass.max("key").values
        chance = null.values[step[:, None], top]
        rows.append(
            {
                "position 0 share": mass.isel(key=0).mean("step").values,
                "position 0 lift": (mass.isel(key=0) / null.isel(key=0)).mean("step").values,
                "strongest share": strongest.mean(0),
                "strongest lift": (strongest / chance).mean(0),
                "strongest is position 0": (top == 0).mean(0),
                "strongest stays to the next step": (top[1:] == top[:-1]).mean(0)
                if len(top) > 1
                else np.full(top.shape[1], np.nan),
            }
        )
        tops.append(top[0] / mass.sizes["key"])
    by_layer = {
        name: [interval([r[name][layer] for r in rows]) for layer in range(model.n_layers)]
        for name in rows[0]
    }
    overall = {name: interval([float(np.nanmean(r[name])) for r in rows]) for name in rows[0]}
    spread = np.stack(tops).std(0)  # of the strongest key's relative position, over examples
    return {
        "n": len(examples),
        "overall": overall,
        "by_layer": by_layer,
        "strongest position spread by layer": spread.tolist(),
    }


def timing(model: fs.Model, tokens: int = 300, steps: int = 16) -> dict[str, float]:
    """A prompt of `tokens` tokens, `steps` steps: plain and traced, best of three, one run."""
    world, parts = World(), ""
    for example in world.examples(LEVELS["many"], 3, seed=7):
        parts += prompt_of(example).text + "\n"
    ids = list(model.encode(fs.Prompt.plain(parts, chat=False)).ids[:tokens])
    sampler: Any = fs.Autoregressive(length=steps, stop_at_eos=False)
    if model.is_diffusion:
        sampler = fs.Confidence(length=steps, steps=steps, stop_at_eos=False)

    def best(run: Callable[[], object]) -> float:
        took = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            took.append(time.perf_counter() - start)
        return min(took)

    plain = best(lambda: model.generate(ids, sampler))
    traced = best(lambda: model.trace(ids, sampler))
    return {"tokens": tokens, "steps": steps, "plain_s": plain, "traced_s": traced}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    parser.add_argument("--n", type=int, default=100, help="questions a suite")
    parser.add_argument("--traces", type=int, default=32, help="prompts whose attention is traced")
    parser.add_argument("--only", choices=("answers", "attention", "time"), help="a part alone")
    args = parser.parse_args()
    traced = World().examples(LEVELS["nine"], args.traces, seed=200)
    asked = suites(args.n) if args.only in (None, "answers") else {}
    results: dict[str, Any] = {}
    for name in MODELS:
        model = fs.load(name)
        found: dict[str, Any] = {"fingerprint": model.fingerprint}
        if args.only in (None, "answers"):
            found["answers"] = {}
            for suite, examples in asked.items():
                found["answers"][suite] = one = interval(answers(model, examples))
                print(f"{name}  {suite:42s} {show(one, 100)} %", flush=True)
        if args.only in (None, "attention"):
            found["attention"] = attention(model, traced)
            for what, one in found["attention"]["overall"].items():
                print(f"{name}  {what:42s} {show(one)}", flush=True)
        if args.only in (None, "time"):
            found["time"] = timing(model)
            print(f"{name}  {found['time']}", flush=True)
        results[name] = found
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


def show(one: dict[str, float], scale: float = 1.0) -> str:
    mean, low, high = (one[k] * scale for k in ("mean", "low", "high"))
    return f"{mean:7.3g}  [{low:.3g}, {high:.3g}]  n {one['n']}"


if __name__ == "__main__":
    main()
