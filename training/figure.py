"""The emergence figure: when the sink, the floating anchors and the lookup appear in training.

    python -m training.figure --tables src/floatscope/models/embedded --out docs/emergence.svg

Reads the tables that training wrote; needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's blue and vermilion: told apart by colour-blind readers, and in grey by line style.
LOOK = {
    "mdm": {"color": "#0072B2", "linestyle": "-", "label": "diffusion"},
    "arm": {"color": "#D55E00", "linestyle": "--", "label": "autoregressive"},
}
PANELS = (
    ("answer_accuracy", "answers right (unseen people)", 100.0),
    ("position0_share", "position 0: share of attention", 100.0),
    ("top1_share", "strongest key: share of attention", 100.0),
    ("top1_is_position0", "strongest key is position 0", 100.0),
    ("anchors_excess", "anchors (excess rule), a layer", 1.0),
    ("persistence_top1", "strongest key stays to the next state", 100.0),
)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def curves(folder: Path, model: str) -> dict[str, tuple[list[float], list[float]]]:
    """Column → (millions of tokens, mean over layers), on prompts of the world."""
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read(folder / f"{model}-emergence.csv"):
        if row["domain"] == "world":
            for name, value in row.items():
                if name not in ("domain", "step", "tokens", "layer") and value not in ("", "nan"):
                    found[name][float(row["tokens"]) / 1e6].append(float(value))
    for row in read(folder / f"{model}-curve.csv"):
        for name in ("answer_accuracy", "answer_loss"):
            found[name][float(row["tokens"]) / 1e6].append(float(row[name]))
    return {
        name: (sorted(points), [sum(points[t]) / len(points[t]) for t in sorted(points)])
        for name, points in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "floatscope"})
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharex=True, layout="constrained")
    for axis, (column, title, scale) in zip(axes.flat, PANELS, strict=True):
        for model, look in LOOK.items():
            x, y = curves(args.tables, model)[column]
            axis.plot(x, [v * scale for v in y], linewidth=1.3, **look)
        axis.set_title(title, fontsize=8, loc="left")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        if scale == 100:
            axis.yaxis.set_major_formatter(lambda v, _: f"{v:.0f} %")
    for axis in axes[1]:
        axis.set_xlabel("training tokens, millions")
    axes[0, 0].legend(frameon=False, loc="center right")
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
