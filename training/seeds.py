"""The pair trained with several seeds: what is the same in each, and what one training alone would have told.

    python -m training.seeds --runs RUN0 RUN1 RUN2 --tables TABLES0 TABLES1 TABLES2 --out FOLDER

RUN is a finished `floatscope study` of that seed's two models, TABLES the folder with its `mdm-curve.csv`,
`mdm-emergence.csv` and the same of `arm`. Writes seeds.json and SEEDS.md, which docs/explanation/pair.md
shows. A seed is
the level that repeats: an interval is over seeds, Student's with their number less one, and so wide. Claims
are compared as `floatscope compare` does it: with fewer than five seeds, side by side and without a verdict.
Beside each difference stands that of the same networks before training: what those have too is no finding.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from floatscope.stats.intervals import hierarchical
from floatscope.studies.claim import format_value
from floatscope.studies.comparison import compare

UNTRAINED, TRAINED = "untrained", "trained"  # the first probe, before any step, and the last
OF_TRAINING = {  # column → what it is, and its unit; of the last probe
    "answer_accuracy": ("answers right, nine passages", "%"),
    "natural_loss": ("held-out text, nats a token", ""),
    "position0_share": ("position 0's share, questions", "%"),
    "top1_share": ("strongest key's share, questions", "%"),
    "persistence_top1": ("the strongest key stays, questions", "%"),
}


def results(runs: list[Path], tables: list[Path]) -> dict[str, Any]:
    """What each seed gave, in the order given; everything the page says comes from here."""
    claims = {
        one.rule.number: {
            "text": one.rule.text,
            "quantity": one.rule.quantity,
            "unit": one.rule.unit,
            "verdicts": [unit.claim.verdict for unit in one.units],
            "values": [n.value for unit in one.units if (n := unit.claim.theta)],
            "intervals": [[n.low, n.high] for unit in one.units if (n := unit.claim.theta)],
            "mean": None if one.effects is None else asdict(one.effects),
            "verdict": one.verdict,  # over seeds; "" with fewer than five
        }
        for one in compare(runs)
    }
    probes = {
        state: {o: [_probe(folder, o, state) for folder in tables] for o in ("mdm", "arm")}
        for state in (UNTRAINED, TRAINED)
    }
    return {"claims": claims, **probes}


def _probe(folder: Path, objective: str, state: str) -> dict[str, float]:
    """The first or the last probe's values; those of attention are means over layers."""
    every = _lines(folder / f"{objective}-curve.csv")
    curve = every[0 if state == UNTRAINED else -1]
    layers = [
        row
        for row in _lines(folder / f"{objective}-emergence.csv")
        if row["step"] == curve["step"] and row["domain"] == "world"
    ]
    return {
        key: float(curve[key]) if key in curve else float(np.mean([float(r[key]) for r in layers]))
        for key in OF_TRAINING
    }


def _lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def over_seeds(values: list[float]) -> list[float]:
    """The mean over seeds and its interval."""
    seeds = list(range(len(values)))
    return [float(x) for x in hierarchical(np.array(values, float), [seeds])]


def page(made: dict[str, Any]) -> str:
    n = len(made[TRAINED]["mdm"])
    heads = [f"seed {s}" for s in range(n)]
    lines = [
        f"| # | claim | quantity | {' | '.join(heads)} | over seeds |",
        "|---" * (4 + n) + "|",
    ]
    for number, claim in sorted(made["claims"].items()):
        shown = ["–"] * n
        if len(claim["values"]) == n:
            shown = [format_value(v, claim["unit"]) for v in claim["values"]]
        cells = [f"**{v}**, {s}" for v, s in zip(claim["verdicts"], shown, strict=True)]
        over = _mean(claim["mean"], claim["unit"], claim["verdict"]) if claim["mean"] else "–"
        lines.append(
            f"| {number} | {claim['text']} | {claim['quantity']} | {' | '.join(cells)} | {over} |"
        )
    both = " | ".join(f"{head}: `mdm`, `arm`" for head in heads)
    lines += [
        "",
        f"| at the end of training | {both} | `mdm` − `arm`, over seeds | before training |",
        "|---" * (3 + n) + "|",
    ]
    for key, (label, unit) in OF_TRAINING.items():
        before, after = (_pairs(made[state], key) for state in (UNTRAINED, TRAINED))
        cells = [f"{format_value(m, unit, bare=True)}, {format_value(a, unit)}" for m, a in after]
        of = "points" if unit == "%" else unit
        changes = [_interval([m - a for m, a in pairs], of) for pairs in (after, before)]
        lines.append(f"| {label} | {' | '.join([*cells, *changes])} |")
    return "\n".join(lines) + "\n"


def _pairs(made: dict[str, list[dict[str, float]]], key: str) -> list[tuple[float, float]]:
    return [(m[key], a[key]) for m, a in zip(made["mdm"], made["arm"], strict=True)]


def _mean(mean: dict[str, Any], unit: str, verdict: str) -> str:
    """A claim over five seeds or more: its random-effects mean, with a verdict."""
    ends = ", ".join(format_value(mean[end], unit, bare=True) for end in ("low", "high"))
    return f"**{verdict}**, {format_value(mean['mean'], unit)} [{ends}]"


def _interval(values: list[float], unit: str) -> str:
    value, low, high = over_seeds(values)
    ends = ", ".join(format_value(end, unit, bare=True) for end in (low, high))
    return f"{format_value(value, unit)} [{ends}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--tables", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if len(args.runs) != len(args.tables) or len(args.runs) < 2:
        raise SystemExit("error: give a run and a folder of tables for each seed, two at least")
    made = results(args.runs, args.tables)
    (args.out / "seeds.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    written = page(made)
    (args.out / "SEEDS.md").write_text(written, "utf-8")
    print(written)


if __name__ == "__main__":
    main()
