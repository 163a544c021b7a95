"""Does it matter? The embedded pair under passages, masked sinks, masked structure, all samplers.

    python examples/findings.py run --out DIR [--n 200] [--device cuda]   # asks; DIR/findings.json
    python examples/findings.py table DIR/findings.json                   # the tables of the docs

Every setting asks the same questions with the same template, masks and steps; differences are paired.
On one H200 it takes about six minutes, on two CPU cores hours.
"""

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatscope import models
from floatscope.anchors import Excess
from floatscope.decode import (
    Autoregressive,
    Confidence,
    Entropy,
    EntropyBound,
    Margin,
    PositionCalibrated,
    Random,
    Remask,
    Threshold,
)
from floatscope.errors import UsageError
from floatscope.interventions import BoostDynamics, MaskColumns, MaskTokens, SinkToken
from floatscope.tasks.asking import ask
from floatscope.tasks.conditions import Condition
from floatscope.tasks.questions import world_records

LENGTH, PASSAGES = 10, 9
MARKUP = ("special", "whitespace", "punctuation", "template")
CONTROLS = (None, "random", "matched")
FIRST, LAST = slice(0, 4), slice(8, 12)  # thirds of twelve layers

Setting = tuple[str, dict[str, Any]]  # name, options of `ask`, and whom the questions are about


def knowledge() -> Iterator[Setting]:
    for people in ("unseen", "known"):
        for name, condition in (("closed", Condition(closed_book=True)), ("with", Condition())):
            yield f"knowledge/{people}/{name}", {"condition": condition, "people": people}
    for place in range(PASSAGES):
        yield f"gold/{place}", {"condition": Condition(gold=place)}
    for n in (1, 3, 6, 15):
        yield f"passages/{n}", {"condition": Condition(passages=n)}
    for share in (0.5, 1.0):
        yield f"noise/{share}", {"condition": Condition(noise=share)}
    for n in (1, 3):
        yield f"conflicts/{n}", {"condition": Condition(conflicts=n)}
    yield "question-first", {"condition": Condition(question_first=True)}
    for n in (10, 30):
        yield f"extra-masks/{n}", {"condition": Condition(extra_masks=n)}


def interventions() -> Iterator[Setting]:
    # The k keys with most attention of each head; of those, only real sinks; or of the head mean.
    kinds: dict[str, dict[str, Any]] = {
        "head": {},
        "sink": {"rule": Excess(3)},
        "mean": {"per_head": False},
    }
    for kind, how in kinds.items():
        for k in (1, 5, 10):
            for control in CONTROLS:
                mask = MaskColumns(k=k, control=control, **how)
                yield f"sinks/{kind}/{k}/{control or 'anchors'}", {"intervention": mask}
    for where, layers in (("first", FIRST), ("last", LAST)):
        for control in CONTROLS:
            mask = MaskTokens(classes=MARKUP, layers=layers, control=control)
            yield f"markup/{where}/{control or 'chosen'}", {"intervention": mask}
            gold = MaskTokens(regions="gold", layers=layers, control=control)
            yield f"gold-passage/{where}/{control or 'chosen'}", {"intervention": gold}
        structural = MaskTokens(classes="structural", layers=layers)
        yield f"structural/{where}/chosen", {"intervention": structural}
    yield "sink-token", {"intervention": SinkToken()}
    for strength in (0.1, 1.0):
        yield f"boost/{strength}", {"intervention": BoostDynamics(strength=strength)}


def samplers() -> Iterator[Setting]:
    fixed = {"length": LENGTH}
    for name, sampler in {
        "confidence": Confidence(**fixed),
        "entropy": Entropy(**fixed),
        "margin": Margin(**fixed),
        "random": Random(**fixed),
        "position-calibrated": PositionCalibrated(**fixed, frequencies="pair"),
        "threshold": Threshold(**fixed),
        "factor": Threshold(**fixed, factor=1.0),
        "entropy-bound": EntropyBound(**fixed),
        "remask": Remask(**fixed, steps=2 * LENGTH),
        "semi-autoregressive": Confidence(**fixed, block_length=2),
        "confidence, 5 steps": Confidence(**fixed, steps=5),
        "confidence, 2 steps": Confidence(**fixed, steps=2),
        "random, 2 steps": Random(**fixed, steps=2),
    }.items():
        yield f"sampler/{name}", {"sampler": sampler}
        # Two hops: far from the ceiling, so that samplers could differ.
        yield f"hops-sampler/{name}", {"sampler": sampler, "people": "hops"}


def run(out: Path, names: list[str], n: int, device: str | None, batch_size: int) -> None:
    """Every setting, a line each; what a file holds already is not asked again."""
    started = time.time()
    out.mkdir(parents=True, exist_ok=True)
    file = out / "findings.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    asked_about = {
        "unseen": world_records("world:nine", n, seed=77),
        "known": world_records("world:nine", n, seed=77, known=True),
        "hops": world_records("world:hops", n, seed=77),
    }
    for name in names:
        model = models.load(name, into=models.Model, dtype="float32", device=device)
        usual = Confidence(length=LENGTH) if model.is_diffusion else Autoregressive(length=LENGTH)
        settings = [*knowledge(), *interventions()]
        settings += samplers() if model.is_diffusion else []
        for setting, options in settings:
            if f"{name} {setting}" in found:
                continue
            records = asked_about[options.pop("people", "unseen")]
            options = {"sampler": usual, **options}
            try:
                asked = ask(model, records, batch_size=batch_size, skip_bad=True, **options)
            except UsageError as error:
                print(f"{name} {setting}: {error}", file=sys.stderr)
                found[f"{name} {setting}"] = {"error": str(error)}
                continue
            rows = asked.rows
            found[f"{name} {setting}"] = {
                "sampler": asked.sampler.describe(),
                "left_out": [str(bad) for bad in asked.left_out],
                "id": [row["id"] for row in rows],
                **{
                    key: [row[key] for row in rows]
                    for key in ("exact_match", "contains", "f1", "steps")
                },
                "order": _orders(asked.decodings) if "sampler/" in setting else None,
            }
            right = sum(row["contains"] for row in rows) / len(rows)
            print(f"{time.time() - started:5.0f} s  {name} {setting}: {right:.3f}", flush=True)
            file.write_text(json.dumps(found))


def _orders(decodings: list[Any]) -> list[dict[str, Any]]:
    """What `DecodingOrder` reads, of the answers alone."""
    return [
        {
            "change": d.change[:, len(d.prompt.ids) :].tolist(),
            "block": (d.block[:, 0] - len(d.prompt.ids)).tolist(),
            "final": d.canvas[-1, len(d.prompt.ids) :].tolist(),
        }
        for d in decodings
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ask_it = commands.add_parser("run", help="ask every question")
    ask_it.add_argument("--out", type=Path, required=True)
    ask_it.add_argument("--model", action="append", help="both of the pair by default")
    ask_it.add_argument("--n", type=int, default=200)
    ask_it.add_argument("--device")
    ask_it.add_argument("--batch-size", type=int, default=8)
    show = commands.add_parser("table", help="print the tables")
    show.add_argument("file", type=Path)
    given = parser.parse_args()
    if given.command == "run":
        run(
            given.out,
            given.model or ["pair/mdm", "pair/arm"],
            given.n,
            given.device,
            given.batch_size,
        )
    else:
        from findings_table import tables

        raw = given.file.read_bytes()
        raw = gzip.decompress(raw) if given.file.suffix == ".gz" else raw
        print(tables(json.loads(raw)))


if __name__ == "__main__":
    main()
