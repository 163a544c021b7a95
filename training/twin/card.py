"""The twin's card: what each model can do, written from its answers and its training's tables.

    python -m training.twin.card --answers mdm-evaluation.json arm-evaluation.json … --out FOLDER

Answers are scored with the package (SQuAD's exact match and F1), means with 95 % intervals. results.json
holds the numbers, CARD.md the table that docs/explanation/twin.md shows. Models not measured are left out.
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
    """model → task → n, exact match and F1 with their intervals; and the text losses.

    Under "mdm − arm": F1's difference by task, paired by question.
    """
    out: dict[str, Any] = {}
    by_question: dict[str, dict[str, np.ndarray]] = {}
    for file in files:
        raw = json.loads(file.read_text("utf-8"))
        name = MODELS[Path(raw["run"]).name]
        tasks, each = {}, by_question.setdefault(name, {})
        for task, answers in raw["answers"].items():
            each[task] = np.array([f1(a["said"], a["answers"]) for a in answers])
            exact = np.array([exact_match(a["said"], a["answers"]) for a in answers])
            tasks[task] = {
                "n": len(answers),
                "exact_match": _mean(exact),
                "f1": _mean(each[task]),
            }
        draws = np.array(raw["text_loss"])  # (draws of masks, texts)
        out[name] = {
            "int8": raw["int8"],
            "text_loss": _mean(draws.mean(0), None),
            "texts": draws.shape[1],
            "draws": [round(float(x), 4) for x in draws.mean(1)],
            "tasks": tasks,
        }
    mdm, arm = (by_question.get(MODELS[name], {}) for name in ("mdm", "arm"))
    both = {t: mdm[t] - arm[t] for t in mdm if t in arm and len(mdm[t]) == len(arm[t])}
    out["mdm − arm"] = {task: _mean(change, (-1, 1)) for task, change in both.items()}
    return out


def _mean(values: np.ndarray, bounds: tuple[float, float] | None = (0, 1)) -> list[float]:
    return [round(float(x), 4) for x in mean(values, bounds=bounds, level=0.95)]


def table(made: dict[str, Any]) -> str:
    """Markdown: a line for each task, exact match and F1 of each model."""
    models = [name for name in MODELS.values() if name in made]
    heads = [f"`{name}`: {what}" for name in models for what in ("exact", "F1")]
    more = ["F1, mdm − arm"] if made["mdm − arm"] else []
    lines = [
        f"| {' | '.join(['task', 'n', *heads, *more])} |",
        "|---" * (2 + len(heads) + len(more)) + "|",
    ]
    for task in dict.fromkeys(task for name in models for task in made[name]["tasks"]):
        scores = [made[name]["tasks"].get(task) for name in models]
        n = {score["n"] for score in scores if score}
        cells = [task, ", ".join(map(str, sorted(n)))]
        for score in scores:
            cells += [_shown(score[key]) if score else "–" for key in ("exact_match", "f1")]
        if more:
            cells.append(_shown(made["mdm − arm"][task]) if task in made["mdm − arm"] else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def losses(made: dict[str, Any]) -> str:
    lines = ["| model | nats a token | |", "|---|---|---|"]
    for name in MODELS.values():
        if name in made:
            what = "masked-diffusion bound" if name == MODELS["mdm"] else "next token"
            value, low, high = made[name]["text_loss"]
            lines.append(f"| `{name}` | {value:.2f} [{low:.2f}, {high:.2f}] | {what} |")
    return "\n".join(lines)


def _shown(number: list[float]) -> str:
    value, low, high = (f"{100 * x:.1f}".replace("-", "−") for x in number)
    return f"{value} [{low}, {high}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--answers", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    made = results(args.answers)
    args.out.mkdir(parents=True, exist_ok=True)
    written = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    (args.out / "results.json").write_text(written, "utf-8")
    card = f"### Questions\n\n{table(made)}\n\n### Held-out text\n\n{losses(made)}\n"
    (args.out / "CARD.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
