"""Draw one layer step by step: the share of attention of each position, and the strongest key."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .drawing import COLOURS, Figure, panels, points

_MOST = 0.2  # share of attention that has the full colour
_APART = 0.1  # of the width, between two labels
_FEW = 6  # steps up to which each is named


def draw_steps(
    share: Float[np.ndarray, "step key"], prompt_length: int, title: str, *, width: float = 3.1
) -> Figure:
    """Draw a row per step and a column per position, with a dot on the strongest key of every step.

    The opacity of one hue shows the share, so that the figure can be read on white and on black.

    Args:
        share (np.ndarray): Share of attention, (step, key); NaN where a key does not exist yet.
        prompt_length (int): Number of positions before the answer.
        title (str): Text above the panel.
        width (float): Width in inches; 3.1 by default.

    Returns:
        The figure.
    """
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba

    steps, keys = share.shape
    strongest = np.nan_to_num(share, nan=-1).argmax(1)
    ramp = [(*to_rgba(COLOURS[0])[:3], alpha) for alpha in (0.0, 1.0)]
    blues = LinearSegmentedColormap.from_list("share", ramp)
    with panels(1, 1, width=width, height=2.9) as (figure, axes):
        axis = axes[0, 0]
        options: Any = {
            "aspect": "auto",
            "interpolation": "nearest",
            "norm": PowerNorm(0.5, 0, _MOST),
        }
        dots: Any = {"s": 14, "color": COLOURS[1], "linewidths": 0, "clip_on": False, "zorder": 3}
        image = axis.imshow(np.nan_to_num(share), cmap=blues, **options)
        axis.scatter(strongest, range(steps), **dots)
        if 0 < prompt_length < keys:
            axis.axvline(prompt_length - 0.5, color="0.5", linewidth=0.8)
        border = [prompt_length] if _APART * keys < prompt_length < (1 - _APART) * keys else []
        axis.set(xlabel="position", ylabel="step")
        axis.set_xticks([0, *border, keys - 1])
        axis.set_yticks(range(steps) if steps <= _FEW else [0, steps - 1])
        axis.set_title(title, parse_math=False)
        bar = figure.colorbar(image, ax=axis, ticks=[0, 0.05, _MOST], extend="max", pad=0.02)
        bar.ax.set_yticklabels(["0", "5 %", f"{100 * _MOST:.0f} %"], fontsize=points(7))
        bar.set_label("share of attention", fontsize=points(7))
    return figure
