"""The twin's card: what each model can do, written from its answers and its training's tables.

    python -m training.twin.card --answers mdm-evaluation.json arm-evaluation.json … --out FOLDER

Answers are scored with the package (SQuAD's exact match and F1), means with 95 % intervals. results.json
holds the numbers, CARD.md the table; docs/twin.md shows it. A model that has not been measured is not in it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from floatscope.stats.intervals import mean
from floatscope.tasks.scores import exact_match, f1

MODELS = {"mdm": "twin/mdm", "arm": "twin/arm", "parent": "twin/parent"}


def results(files: list[Path]) -> dict[str, Any]:
    """model → task → n, exact match and F1 with their intervals; and the text losses."""
    out: dict[str, Any] = {}
    for file in files:
        raw = json.loads(file.read_text("utf-8"))
        name = MODELS[Path(raw["run"]).name]
        tasks = {}
        for task, answers in raw["answers"].items():
            tasks[task] = {
                "n": len(answers),
                "exact_match": _mean([exact_match(a["said"], a["answers"]) for a in answers]),
                "f1": _mean([f1(a["said"], a["answers"]) for a in answers]),
            }
        losses = raw["text_loss"]
        out[name] = {
            "int8": raw["int8"],
            "text_loss": float(np.mean(losses)),
            "draws": losses,
            "tasks": tasks,
        }
    return out


def _mean(values: list[float]) -> list[float]:
    return [round(float(x), 4) for x in mean(np.array(values), bounds=(0, 1), level=0.95)]


def table(found: dict[str, Any]) -> str:
    """Markdown: a line for each task and model."""
    lines = ["| task | model | n | exact match, % | F1, % |", "|---|---|---|---|---|"]
    tasks = dict.fromkeys(task for model in found.values() for task in model["tasks"])
    for task in tasks:
        for model, has in found.items():
            if task in has["tasks"]:
                one = has["tasks"][task]
                em, f = (_shown(one[key]) for key in ("exact_match", "f1"))
                lines.append(f"| {task} | `{model}` | {one['n']} | {em} | {f} |")
    return "\n".join(lines)


def losses(found: dict[str, Any]) -> str:
    lines = ["| model | nats a token |", "|---|---|"]
    return "\n".join(
        lines + [f"| `{name}` | {has['text_loss']:.2f} |" for name, has in found.items()]
    )


def _shown(number: list[float]) -> str:
    value, low, high = (100 * x for x in number)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--answers", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = results(args.answers)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    card = f"# The twin\n\n## Questions\n\n{table(found)}\n\n## Held-out text\n\n{losses(found)}\n"
    (args.out / "CARD.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
