"""The picture behind drift: one decoding, step by position, with its anchors marked.

The paper's figure of temporal drift (2601.07894). It shows one trace and measures nothing; what it
seems to show is tested by Drift, with its chance level and its interval.
"""

import numpy as np

from ..errors import UsageError
from ..stats.anchors import Rule, ZScore
from ..trace import Trace
from .style import LIFT_MAP, SHARE_MAP, Figure, panels


def heatmap(
    trace: Trace, layer: int | None = None, *, rule: Rule | None = None, lift: bool = False
) -> Figure:
    """Received share (or lift over uniform) of every key at every step: one layer, or their mean.

    Anchors of the rule are marked with triangles, positions revealed at a step with open circles;
    the answer begins at the white line. Head mean; the rule is applied to it.
    """
    from matplotlib.colors import LogNorm

    if layer is not None and layer not in trace.data["layer"].values:
        kept = trace.data["layer"].values.tolist()
        raise UsageError(f"no layer {layer} in this trace", f"It has: {kept}.")
    rule = rule or ZScore()
    values = (trace.lift if lift else trace.mass).mean("head")
    received = trace.received.mean("head")
    if layer is None:
        values, received = values.mean("layer"), received.mean("layer")
    else:
        values, received = values.sel(layer=layer), received.sel(layer=layer)
    anchor = rule.of(received).transpose("step", "key").values
    shown = values.transpose("step", "key").values
    steps = trace.data["step"].values
    with panels(1, 1, width=6.8, height=2.6) as (figure, axes):
        axis = axes[0, 0]
        look = (
            {"norm": LogNorm(0.1, 10), "cmap": LIFT_MAP} if lift else {"vmin": 0, "cmap": SHARE_MAP}
        )
        edges = (-0.5, shown.shape[1] - 0.5, len(steps) - 0.5, -0.5)
        image = axis.imshow(shown, aspect="auto", interpolation="nearest", extent=edges, **look)
        at_step, at_key = np.nonzero(anchor)
        axis.plot(at_key, at_step, "v", color="white", markeredgecolor="black", markersize=3.5,
                  markeredgewidth=0.5, linestyle="none", label="anchor")  # fmt: skip
        reveals = trace.change.values[steps] == 1
        at_step, at_key = np.nonzero(reveals)
        axis.plot(at_key, at_step, "o", markerfacecolor="none", markeredgecolor="#E69F00",
                  markersize=4, linestyle="none", label="revealed")  # fmt: skip
        axis.axvline(int(trace.info["prompt_length"]) - 0.5, color="white", linewidth=0.8)
        axis.set_xlabel("position")
        axis.set_ylabel("step")
        some = range(0, len(steps), max(1, len(steps) // 10))
        axis.set_yticks(list(some), [str(steps[i]) for i in some])
        where = "mean over layers" if layer is None else f"layer {layer}"
        axis.set_title(f"{trace.info['model']}, {where}; anchors by {rule!r}")
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.22), ncols=2)
        figure.colorbar(image, ax=axis, label="lift over uniform" if lift else "share of attention")
    return figure
