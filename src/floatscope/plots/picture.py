"""Draw a trace as a map of steps × positions with its anchors, as in Attention Floating (2601.07894).

The figure shows one trace. Whether anchors move is tested by the measure `Drift`, over many examples, with a
chance level and an interval.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..stats.anchors import Rule, ZScore
from ..trace import Trace
from .attention_map import Selection
from .drawing import Figure, figure_size, legend, style
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
    """Draw the share of attention received by every key at every step, with the anchors of a rule.

    The map is that of `Trace.heatmap("step", …)`. The rule is applied to received attention, averaged over
    the layers and heads that are drawn. Triangles mark anchors. Open circles mark the positions that are
    revealed at a step.

    Args:
        trace (Trace): The trace of one prompt.
        layer (int or sequence of int): One layer, or several layers to average over; all by default.
        head (int or sequence of int): One head, or several heads to average over; all by default.
        rule (Rule): Decides which keys are anchors; `ZScore()` by default.
        lift (bool): Whether to draw the share divided by that of uniform attention instead of the share;
            False by default.
        tokens (bool): Label every position with its token (True) or none (False); by default all if there is
            room, else the strongest.
        **size: ax, width, height and font_size, as for `Trace.heatmap`.

    Returns:
        The figure.
    """
    from matplotlib import rc_context

    rule = rule or ZScore()
    selection: Selection = {"layer": layer, "head": head}
    with figure_size(**size), rc_context(style()):
        note = f"; anchors by {rule!r}"
        axis = draw(trace, "step", "position", selection, lift=lift, tokens=tokens, note=note)
        received = trace.mean_received
        if head is not None:
            received = trace.received.sel(head=np.atleast_1d(head)).mean("head")
        if layer is not None:
            received = received.sel(layer=np.atleast_1d(layer))
        anchor = rule.apply(received.mean("layer")).transpose("step", "key").values
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
