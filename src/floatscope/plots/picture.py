"""The picture behind drift: one decoding, step by position, with its anchors marked.

The paper's figure of temporal drift (2601.07894). It shows one trace and measures nothing; what it
seems to show is tested by Drift, with its chance level and its interval.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..stats.anchors import Rule, ZScore
from ..trace import Trace
from .drawing import Figure, asked, legend, style
from .heatmap import draw


def heatmap(
    trace: Trace,
    layer: int | Sequence[int] | None = None,
    *,
    head: int | Sequence[int] | None = None,
    rule: Rule | None = None,
    lift: bool = False,
    tokens: bool | None = None,
    **size: Any,
) -> Figure:
    """Received share (or lift over uniform) of every key at every step, with the anchors of a rule.

    `Trace.heatmap("step", …)` of one layer and head, or their mean; the rule is applied to what is
    shown. Anchors are marked with triangles, positions revealed at a step with open circles. `size` is
    that of `Trace.heatmap`: ax, width, height, font_size.
    """
    from matplotlib import rc_context

    rule = rule or ZScore()
    look: dict[str, Any] = {"layer": layer, "head": head, "lift": lift, "tokens": tokens}
    with asked(**size), rc_context(style()):
        note = f"; anchors by {rule!r}"
        axis = draw(trace, "step", "position", **look, note=note)
        received = trace.mean_received
        if head is not None:
            received = trace.received.sel(head=np.atleast_1d(head)).mean("head")
        if layer is not None:
            received = received.sel(layer=np.atleast_1d(layer))
        anchor = rule.of(received.mean("layer")).transpose("step", "key").values
        at_step, at_key = np.nonzero(anchor)
        axis.plot(at_key, at_step, "v", color="white", markeredgecolor="black", markersize=3.5,
                  markeredgewidth=0.5, linestyle="none", label="anchor")  # fmt: skip
        reveals = trace.change.values[trace.data["step"].values] == 1
        at_step, at_key = np.nonzero(reveals)
        axis.plot(at_key, at_step, "o", markerfacecolor="none", markeredgecolor="#E69F00",
                  markersize=4, linestyle="none", label="revealed")  # fmt: skip
        figure: Any = axis.get_figure(root=True)
        legend(figure, axis)
    return figure
