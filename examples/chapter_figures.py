"""Draw two figures of the chapter "Attention in diffusion models": a canvas being filled, and who sees whom.

python examples/chapter_figures.py docs/chapter
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

import floatscope as fs

TEXT = "He opened the door of the old house and"
LENGTH = 10
MASKED, REVEALED, PROMPT = "#d9dde3", "#f6c9a0", "#ffffff"


def draw_canvas(path: Path) -> None:
    """Draw the canvas of a short continuation at each step: prompt, revealed tokens and masks."""
    model = fs.load("pair/mdm")
    sampler = fs.Confidence(length=LENGTH, steps=LENGTH // 2, temperature=0.5, seed=3)
    trace = model.trace(fs.Prompt.plain(TEXT, chat=False), sampler, keep={"mass"})
    begin = trace.info["prompt_length"] - 3
    figure, axis = plt.subplots(figsize=(8, 2.6), layout="constrained")
    steps = trace.canvas.sizes["state"]
    for step in range(steps):
        for column, token in enumerate(trace.canvas.values[step, begin:]):
            masked = token == model.mask_id
            answer = column >= 3
            colour = MASKED if masked else REVEALED if answer else PROMPT
            axis.add_patch(Rectangle((column, step), 1, 1, facecolor=colour, edgecolor="0.6"))
            text = "mask" if masked else model.tokenizer.decode([int(token)]).strip()
            grey = "0.55" if masked else "0.1"
            axis.text(column + 0.5, step + 0.5, text, ha="center", va="center", color=grey, size=7)
    axis.set(xlim=(0, 3 + LENGTH), ylim=(steps, 0), xticks=[])
    axis.set_yticks(
        np.arange(steps) + 0.5, [*(f"before step {i}" for i in range(steps - 1)), "end"]
    )
    axis.tick_params(length=0)
    figure.savefig(path, dpi=130)


def draw_visible(path: Path) -> None:
    """Draw which keys each query sees in a causal and in a bidirectional model."""
    size = 8
    causal = np.tril(np.ones((size, size)))
    figure, axes = plt.subplots(1, 2, figsize=(5.4, 2.7), layout="constrained")
    for axis, title, seen in zip(
        axes,
        (
            "causal: every row sees position 0,\nonly one row sees the last",
            "bidirectional: every row\nsees every position",
        ),
        (causal, np.ones((size, size))),
        strict=True,
    ):
        axis.imshow(seen, cmap="Blues", vmin=0, vmax=1.6)
        axis.set(
            title=title, xlabel="key", ylabel="query", xticks=[0, size - 1], yticks=[0, size - 1]
        )
        axis.set_xticks(np.arange(size + 1) - 0.5, minor=True)
        axis.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        axis.grid(which="minor", color="white")
        axis.tick_params(which="minor", length=0)
        axis.title.set_size(8)
    figure.savefig(path, dpi=130)


def main(folder: str) -> None:
    """Write both figures into a folder."""
    plt.rcParams.update({"font.size": 8})
    Path(folder).mkdir(parents=True, exist_ok=True)
    draw_canvas(Path(folder) / "canvas.png")
    draw_visible(Path(folder) / "visible.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
