"""Show a trace in a terminal: the decoded answer, and the strongest key of each layer."""

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..trace import Trace, readable


def summary(trace: Trace) -> RenderableType:
    """Render the answer with its reveal steps, and for each layer the key that receives most attention.

    The layers are left out if the trace does not contain attention by key.
    """
    info = trace.info
    head = Text.assemble(
        ("answer ", "bold"),
        (repr(trace.text), "green"),
        f"  ({info['ended']}, {trace.n_steps} steps, {info['sampler']})",
    )
    under = [Text(f"under  {intervention}", "yellow") for intervention in trace.interventions]
    parts: list[RenderableType] = [head, *under, _order(trace)]
    if not {"column_sum", "column_mean"}.isdisjoint(trace.data):
        parts.append(_layers(trace))
    recorded = ", ".join(str(name) for name in trace.data.data_vars if trace.data[name].ndim > 2)
    parts.append(Text(f"{readable(trace.nbytes)}: {recorded}", "dim"))
    return Group(*parts)


def _order(trace: Trace) -> RenderableType:
    """Render the answer tokens with the step that revealed each, counted from 0 as in `trace.sel(step=…)`."""
    start = int(trace.info["prompt_length"])
    reveals = trace.change.values[:, start:] == 1
    tokens = trace.data["final_token"].values[start:]
    line = Text("order  ", "bold")
    for i, token in enumerate(tokens):
        when = np.flatnonzero(reveals[:, i])
        line.append(repr(str(token))[1:-1])
        line.append(f"·{when[-1]} " if len(when) else "·– ", "dim")
    line.append(" (·n: revealed at step n, the first is 0)", "dim")
    return line


def _layers(trace: Trace) -> RenderableType:
    """Render position 0 and the strongest key of each layer: mean over heads and over all kept steps."""
    mass = trace.mean_mass  # (step, layer, key)
    null = trace.null
    tokens = trace.data["final_token"].values
    table = Table(title="Where attention rests (mean over heads and steps)", title_justify="left")
    for name in ("layer", "position 0", "lift"):
        table.add_column(name, justify="right")
    table.add_column("strongest key", no_wrap=True, overflow="ellipsis", max_width=34)
    for name in ("share", "lift", "on top"):
        table.add_column(name, justify="right")
    for layer in mass["layer"].values:
        share = mass.sel(layer=layer)
        mean = share.mean("step", skipna=True)
        due = null.sel(layer=layer) if "layer" in null.dims else null
        lift = (share / due).mean("step", skipna=True)
        top = int(mean.fillna(-1).argmax("key"))
        on_top = float((share.fillna(-1).argmax("key") == top).mean())
        name = f"{top} {str(tokens[top])!r} ({trace.data['region'].values[top]})"
        table.add_row(
            str(layer),
            f"{float(mean[0]):.1%}",
            f"{float(lift[0]):.2f}×",
            escape(name),
            f"{float(mean[top]):.1%}",
            f"{float(lift[top]):.2f}×",
            f"{on_top:.0%}",
        )
    table.caption = (
        "lift: × uniform attention over the visible keys; on top: share of steps;\n"
        "keys by their final tokens"
    )
    return table
