"""Draw attention floating: the key that receives most attention, step by step, in three layers.

A text of 64 tokens is continued by the two embedded models. Each panel shows one layer: how attention is
spread over the positions (columns) at every step (rows), and a dot on the strongest key. For the causal
model this is the attention of all positions so far; for the diffusion model that of the masked positions.

    python examples/floating_picture.py docs/floating.png
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import PowerNorm

import floatscope as fs
from floatscope.tasks.long_questions import long_records

TEXT = 48  # the first text of the registered run on movement
LENGTH, STEPS = 64, 32


def shares(model: fs.Model, prompt: fs.Prompt, layer: int) -> np.ndarray:
    """Decode a continuation and return each key's share of attention in a layer: (step, key)."""
    if model.is_diffusion:
        sampler = fs.Confidence(length=LENGTH, steps=STEPS, block_length=8, temperature=0.7)
        mass = model.trace(prompt, sampler, keep={"groups"}).mean_mass_from("masked")
    else:
        mass = model.trace(prompt, fs.Autoregressive(length=LENGTH), keep={"head_mean"}).mean_mass
    return mass.sel(layer=layer).transpose("step", "key").values


def main(path: str) -> None:
    """Draw the three panels and save them."""
    prompt = fs.Prompt.plain(
        long_records("long:continuation", TEXT + 1, 0)[TEXT].question, chat=False
    )
    mdm, arm = fs.load("pair/mdm"), fs.load("pair/arm")
    panels = [
        ("Causal model, layer 7:\na fixed sink, the first token", arm, 7),
        ("Diffusion model, layer 0:\nthe anchor stays", mdm, 0),
        ("Diffusion model, layer 7:\nthe anchor moves", mdm, 7),
    ]
    plt.rcParams.update({"font.size": 8})
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.7), layout="constrained")
    for axis, (title, model, layer) in zip(axes, panels, strict=True):
        share = shares(model, prompt, layer)
        steps, keys = share.shape
        image = axis.imshow(
            np.nan_to_num(share),
            cmap="Greys",
            norm=PowerNorm(0.5, 0, 0.2),
            aspect="auto",
            interpolation="nearest",
        )
        strongest = np.nan_to_num(share).argmax(1)
        axis.scatter(strongest, range(steps), s=9, color="#d1495b", linewidths=0, clip_on=False)
        axis.axvline(keys - LENGTH - 0.5, color="#00798c", linewidth=0.8)
        axis.set(title=title, xlabel="position of the key", xticks=[0, keys - LENGTH, keys - 1])
        for x, text in ((keys - LENGTH - 3, "prompt"), (keys - LENGTH + 2, "answer")):
            side = "right" if text == "prompt" else "left"
            axis.text(x, 0.02 * steps, text, color="#00798c", ha=side, va="top", size=7)
        axis.set_yticks([0, steps - 1])
    axes[0].set_ylabel("step")
    colours = figure.colorbar(image, ax=axes, ticks=[0, 0.05, 0.2], pad=0.01, extend="max")
    colours.ax.set_yticklabels(["0", "5 %", "20 %"])
    colours.set_label("share of attention")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
